/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a library that shares libstdc++ run with that of gcc 8: jumps to older functions that do the same.

   As python/anyop/builder/older_glibc.S, for functions that got a new version or name since. */
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

.macro older version, old, name
  .section .text.\name, "ax", %progbits
  .globl \name
  .hidden \name
  .type \name, %function
  \name:
  .symver older_\name, \old@\version
#if defined(__x86_64__)
  jmp older_\name@PLT
#else
  b older_\name
#endif
  .size \name, . - \name
.endm

/* condition_variable::wait(unique_lock<mutex>&): noexcept since gcc 12. */
#define WAIT _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE
older GLIBCXX_3.4.11, WAIT, WAIT
/* __throw_bad_array_new_length(), since gcc 11. */
older CXXABI_1.3.8, __cxa_throw_bad_array_new_length, _ZSt28__throw_bad_array_new_lengthv
/* exception_ptr::_M_release(), exported since gcc 11: what the destructor has always done. */
older CXXABI_1.3.3, _ZNSt15__exception_ptr13exception_ptrD1Ev, _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv

#endif
.section .note.GNU-stack, "", %progbits
