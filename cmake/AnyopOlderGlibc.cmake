# SPDX-License-Identifier: Apache-2.0
# Links a library such that it runs with older releases of glibc and libstdc++ than this machine's.

# Sets ANYOP_OLDER_LIBSTDCXX to the file of older functions; to nothing where the compiler links
# libstdc++ statically, or another library in its place: such have no versions.
function(anyop_find_older_libstdcxx)
  if(DEFINED ANYOP_OLDER_LIBSTDCXX)
    return()
  endif()
  set(file "${CMAKE_CURRENT_SOURCE_DIR}/cmake/older_libstdcxx.S")
  set(trial "${CMAKE_CURRENT_BINARY_DIR}/older_libstdcxx_trial")
  file(WRITE "${trial}.cc" "#include <condition_variable>\n#include <mutex>\n#include <vector>\n\
void Wait(std::condition_variable* c, std::unique_lock<std::mutex>* lock) { c->wait(*lock); }\n\
int* Make(long n) { return new int[n]; }\n")
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" -shared -fPIC -Wl,--no-undefined "${trial}.cc" "${file}"
      -o "${trial}.so" -lpthread
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(file "")
  endif()
  set(ANYOP_OLDER_LIBSTDCXX "${file}" CACHE INTERNAL "older functions of a shared libstdc++")
endfunction()

# A sanitizer stands before the functions concerned; such builds stay on their machine.
function(anyop_run_with_older_glibc target)
  if(ANYOP_SANITIZE)
    return()
  endif()
  anyop_find_older_libstdcxx()
  target_sources(${target} PRIVATE
    "${CMAKE_CURRENT_SOURCE_DIR}/python/anyop/builder/older_glibc.S" ${ANYOP_OLDER_LIBSTDCXX})
  # The libraries held the functions before glibc 2.34; they have been empty since, and stay.
  set(before "-l:libpthread.so.0,-l:libdl.so.2,-l:librt.so.1")
  target_link_options(${target} PRIVATE
    -Wl,--gc-sections "-Wl,--push-state,--no-as-needed,${before},--pop-state")
endfunction()
