/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a shared library whose file is whole. The loader maps what the ELF headers say: of a file
   that was cut off it would end the process by SIGBUS. C. */
#ifndef ANYOP_LIBRARY_FILE_H_
#define ANYOP_LIBRARY_FILE_H_

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The last bytes of a library that anyop built: these, then the CRC-32 of all before in eight hex
 * digits. */
#define ANYOP_SEAL "ANYOPCRC"
#define ANYOP_SEAL_BYTES 16

/* Where the file must end at least, by its headers; 0 for what dlopen refuses in its own words. */
static inline uint64_t AnyopLibraryEnd(int file) {
  Elf64_Ehdr head;
  static const unsigned char kKind[6] = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB};
  if (pread(file, &head, sizeof head, 0) != (ssize_t)sizeof head) return sizeof head;
  if (memcmp(head.e_ident, kKind, sizeof kKind) != 0) return 0;
  uint64_t end = head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize;
  if (end < head.e_shoff) return UINT64_MAX;
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr part;
    const uint64_t at = head.e_phoff + (uint64_t)i * sizeof part;
    if (at > INT64_MAX || pread(file, &part, sizeof part, (off_t)at) != (ssize_t)sizeof part)
      return UINT64_MAX;
    const uint64_t part_end = part.p_offset + part.p_filesz;
    if (part_end < part.p_offset) return UINT64_MAX;
    if (part_end > end) end = part_end;
  }
  return end;
}

/* CRC-32, as zlib's, of the file's first bytes; eight bytes a step. */
static inline uint32_t AnyopLibraryCrc(int file, uint64_t bytes) {
  uint32_t table[8][256], crc = 0xffffffffu;
  for (uint32_t n = 0; n < 256; ++n) {
    table[0][n] = n;
    for (int bit = 0; bit < 8; ++bit)
      table[0][n] = (table[0][n] >> 1) ^ (table[0][n] & 1 ? 0xedb88320u : 0);
  }
  for (int k = 1; k < 8; ++k)
    for (int n = 0; n < 256; ++n)
      table[k][n] = (table[k - 1][n] >> 8) ^ table[0][table[k - 1][n] & 255];
  unsigned char block[16384];
  for (uint64_t at = 0; at < bytes;) {
    const size_t wanted = bytes - at < sizeof block ? (size_t)(bytes - at) : sizeof block;
    const ssize_t got = pread(file, block, wanted, (off_t)at);
    if (got <= 0) return 0; /* cut off meanwhile */
    ssize_t i = 0;
    for (; i + 8 <= got; i += 8) {
      const unsigned char* b = block + i;
      crc = table[7][(crc & 255) ^ b[0]] ^ table[6][((crc >> 8) & 255) ^ b[1]] ^
            table[5][((crc >> 16) & 255) ^ b[2]] ^ table[4][(crc >> 24) ^ b[3]] ^ table[3][b[4]] ^
            table[2][b[5]] ^ table[1][b[6]] ^ table[0][b[7]];
    }
    for (; i < got; ++i) crc = (crc >> 8) ^ table[0][(crc ^ block[i]) & 255];
    at += (uint64_t)got;
  }
  return ~crc;
}

static inline const char* AnyopLibraryFileProblem(int file) {
  const int64_t size = lseek(file, 0, SEEK_END);
  if (size < 0) return "is no regular file";
  if (AnyopLibraryEnd(file) > (uint64_t)size)
    return "is cut off: it is shorter than its ELF headers say; copy or build it again";
  char seal[ANYOP_SEAL_BYTES], crc[9];
  const int64_t bytes = size - ANYOP_SEAL_BYTES;
  if (bytes < 0 || pread(file, seal, sizeof seal, bytes) != (ssize_t)sizeof seal) return NULL;
  if (memcmp(seal, ANYOP_SEAL, 8) != 0) return NULL;
  snprintf(crc, sizeof crc, "%08x", AnyopLibraryCrc(file, (uint64_t)bytes));
  if (memcmp(seal + 8, crc, 8) == 0) return NULL;
  return "is not what was built: the checksum at its end is of other bytes; copy or build it again";
}

/* Whether the file can be opened; else the reason is in text. A name without a folder is the
   loader's to find, and a file that is not there is the loader's to miss. */
static inline int AnyopLibraryFileIsWhole(const char* path, char* text, size_t capacity) {
  if (!strchr(path, '/')) return 1;
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* which waits for no pipe */
  if (file < 0) return 1;
  const char* problem = AnyopLibraryFileProblem(file);
  close(file);
  if (problem) snprintf(text, capacity, "%.880s %s", path, problem);
  return !problem;
}

/* dlopen of a library of which nobody is sure; NULL with the reason in text. */
static inline void* AnyopOpenLibraryFile(const char* path, int mode, char* text, size_t capacity) {
  if (!AnyopLibraryFileIsWhole(path, text, capacity)) return NULL;
  void* library = dlopen(path, mode);
  const char* reason = library ? NULL : dlerror();
  if (!library)
    snprintf(text, capacity, "%.880s%s", reason ? reason : path,
             reason && strstr(reason, "failed to map segment")
                 ? "; is its file system mounted noexec? ANYOP_CACHE_DIR names another cache"
                 : "");
  return library;
}

#endif /* ANYOP_LIBRARY_FILE_H_ */
