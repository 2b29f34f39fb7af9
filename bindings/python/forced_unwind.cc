// SPDX-License-Identifier: Apache-2.0
// Python up to 3.13 ends daemon threads by pthread_exit once the interpreter ends. It would unwind
// C++ frames, whose destructors touch Python without its lock or let no exception through. Where it
// meets the first of ours, the thread sleeps for ever instead, as Python 3.14 has it. All C++ code
// of a library asks this function, which the linker puts before the runtime's (--wrap).
#include <dlfcn.h>
#include <unistd.h>
#include <unwind.h>

#include "ending.h"

namespace anyop {

bool IsEnding() {
  using Function = int (*)();
  static const auto find = [](const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  };
  static const Function is_initialized = find("Py_IsInitialized");
  static const Function is_finalizing = [] {
    const Function found = find("Py_IsFinalizing");  // private before 3.13
    return found ? found : find("_Py_IsFinalizing");
  }();
  return (is_initialized && !is_initialized()) || (is_finalizing && is_finalizing());
}

void SleepForEver() {
  for (;;) pause();
}

}  // namespace anyop

extern "C" {
using Personality = _Unwind_Reason_Code(int version, _Unwind_Action actions,
                                        _Unwind_Exception_Class kind, _Unwind_Exception* exception,
                                        _Unwind_Context* context);
Personality __real___gxx_personality_v0;
__attribute__((visibility("hidden"))) Personality __wrap___gxx_personality_v0;

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception,
                                                _Unwind_Context* context) {
  if ((actions & _UA_FORCE_UNWIND) && anyop::IsEnding()) anyop::SleepForEver();
  return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
}
