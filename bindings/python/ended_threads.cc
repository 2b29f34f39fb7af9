// SPDX-License-Identifier: Apache-2.0
// Daemon threads sleep for ever once the interpreter ends, as Python 3.14 has it.
//
// Python up to 3.13 ends a thread that asks for its lock then by pthread_exit. That unwinds the
// frames of C++ above, whose destructors touch Python without its lock or let no exception through:
// the process dies, with torch's, jaxlib's and tvm-ffi's frames without anyop, too. So the slot by
// which Python's library calls pthread_exit is set to a function that sleeps instead.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "gil.h"

namespace anyop {
namespace {

[[noreturn]] void ExitThread(void* result) {
  while (IsEnding()) pause();
  pthread_exit(result);
}

// What a slot within RELRO shares a page with is read-only: set while it is not.
void Set(void** slot, uintptr_t protected_end) {
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t page = reinterpret_cast<uintptr_t>(slot) / page_bytes * page_bytes;
  const bool is_protected = page < protected_end / page_bytes * page_bytes;
  void* const begin = reinterpret_cast<void*>(page);
  if (is_protected && mprotect(begin, page_bytes, PROT_READ | PROT_WRITE)) return;
  __atomic_store_n(slot, reinterpret_cast<void*>(ExitThread), __ATOMIC_RELAXED);
  if (is_protected) mprotect(begin, page_bytes, PROT_READ);
}

// Of the dynamic section, with the addresses that the loader has written there.
struct Dynamic {
  explicit Dynamic(const ElfW(Dyn) * entry) {
    for (; entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag < DT_NUM) values[entry->d_tag] = entry->d_un.d_ptr;
  }
  template <typename T>
  const T* At(int tag) const {
    return reinterpret_cast<const T*>(values[tag]);
  }
  uintptr_t values[DT_NUM] = {};
};

int SetSlots(dl_phdr_info* library, size_t, void* code_of_python) {
  const ElfW(Phdr)* const headers = library->dlpi_phdr;
  const uintptr_t base = library->dlpi_addr;
  const uintptr_t code = reinterpret_cast<uintptr_t>(code_of_python) - base;
  const ElfW(Dyn)* entries = nullptr;
  uintptr_t protected_end = 0;
  bool is_pythons = false;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const uintptr_t begin = headers[i].p_vaddr, bytes = headers[i].p_memsz;
    if (headers[i].p_type == PT_LOAD) is_pythons |= code - begin < bytes;
    if (headers[i].p_type == PT_GNU_RELRO) protected_end = base + begin + bytes;
    if (headers[i].p_type == PT_DYNAMIC) entries = reinterpret_cast<const ElfW(Dyn)*>(base + begin);
  }
  if (!is_pythons || !entries) return 0;
  const Dynamic dynamic(entries);
  const auto* const symbols = dynamic.At<ElfW(Sym)>(DT_SYMTAB);
  const char* const names = dynamic.At<char>(DT_STRTAB);
  for (const auto& [table, size] : {std::pair(DT_RELA, DT_RELASZ), {DT_JMPREL, DT_PLTRELSZ}}) {
    const auto* const slots = dynamic.At<ElfW(Rela)>(table);
    for (size_t i = 0; i < dynamic.values[size] / sizeof(ElfW(Rela)); ++i)
      if (!strcmp(names + symbols[ELF64_R_SYM(slots[i].r_info)].st_name, "pthread_exit"))
        Set(reinterpret_cast<void**>(base + slots[i].r_offset), protected_end);
  }
  return 1;
}

}  // namespace

bool IsEnding() {
  using Function = int (*)();
  static const Function is_finalizing = [] {
    void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");  // private before 3.13
    return reinterpret_cast<Function>(found ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
  }();
  return !Py_IsInitialized() || (is_finalizing && is_finalizing());
}

void KeepEndedThreads() {
  dl_iterate_phdr(SetSlots, reinterpret_cast<void*>(PyEval_RestoreThread));
}

}  // namespace anyop
