# SPDX-License-Identifier: Apache-2.0
# Links a library such that it runs with older releases of glibc and libstdc++ than this machine's.

# A sanitizer stands before the functions concerned; such builds stay on their machine.
function(anyop_run_with_older_glibc target)
  if(ANYOP_SANITIZE)
    return()
  endif()
  target_sources(${target} PRIVATE
    "${CMAKE_CURRENT_SOURCE_DIR}/python/anyop/builder/older_glibc.S"
    "${CMAKE_CURRENT_SOURCE_DIR}/cmake/older_libstdcxx.S")
  # The libraries held the functions before glibc 2.34; they have been empty since, and stay.
  set(before "-l:libpthread.so.0,-l:libdl.so.2,-l:librt.so.1")
  target_link_options(${target} PRIVATE
    -Wl,--gc-sections "-Wl,--push-state,--no-as-needed,${before},--pop-state")
endfunction()
