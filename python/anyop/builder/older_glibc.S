/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a library that is linked here run with older glibc: jumps to the versions of functions before 2.33.

   glibc 2.34 moved libpthread, libdl and librt into libc.so.6 and gave their functions new versions; what
   they do stayed. The linker takes the newest version there is, so that the library would not load with an
   older glibc. Defined here and hidden, a name leads to the old version instead, which every glibc has. Needs
   -Wl,--gc-sections, which drops what nobody calls, and DT_NEEDED of libpthread.so.0, libdl.so.2 and
   librt.so.1, where old systems have the functions. */
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

.macro older version, names:vararg
  .irp name, \names
    .section .text.\name, "ax", %progbits
    .globl \name
    .hidden \name
    .type \name, %function
    \name:
#if defined(__x86_64__)
    .symver older_\name, \name@GLIBC_\version
    jmp older_\name@PLT
#else
    .symver older_\name, \name@GLIBC_2.17
    b older_\name
#endif
    .size \name, . - \name
  .endr
.endm

older 2.2.5, dlopen, dlclose, dlsym, dlerror, dladdr, dlvsym, shm_open, shm_unlink
older 2.3.3, dlinfo, dladdr1
older 2.3.4, dlmopen
older 2.2.5, pthread_create, pthread_join, pthread_detach, pthread_once, pthread_kill, pthread_sigmask
older 2.2.5, pthread_key_create, pthread_key_delete, pthread_getspecific, pthread_setspecific
older 2.2.5, pthread_mutex_trylock, pthread_mutexattr_init, pthread_mutexattr_destroy
older 2.2.5, pthread_mutexattr_settype, pthread_mutexattr_setpshared, pthread_condattr_setpshared
older 2.2.5, pthread_rwlock_init, pthread_rwlock_destroy, pthread_rwlock_unlock
older 2.2.5, pthread_rwlock_rdlock, pthread_rwlock_tryrdlock, pthread_rwlock_timedrdlock
older 2.2.5, pthread_rwlock_wrlock, pthread_rwlock_trywrlock, pthread_rwlock_timedwrlock
older 2.2.5, pthread_rwlockattr_init, pthread_rwlockattr_destroy, pthread_rwlockattr_setpshared
older 2.2.5, pthread_spin_init, pthread_spin_destroy, pthread_spin_lock, pthread_spin_trylock
older 2.2.5, pthread_spin_unlock, sem_init, sem_destroy, sem_post, sem_wait, sem_trywait, sem_timedwait
older 2.3.3, pthread_condattr_setclock
older 2.3.4, pthread_setaffinity_np, pthread_getaffinity_np
older 2.12, pthread_setname_np, pthread_getname_np

/* 2.29 gave libm's functions new versions that set errno in another way. */
older 2.2.5, exp, exp2, log, log2, pow

/* Functions since 2.33; before, a header called others, which take the version of struct stat first. */
.macro older_stat version, old, names:vararg
  .irp name, \names
    .section .text.\name, "ax", %progbits
    .globl \name
    .hidden \name
    .type \name, %function
    \name:
#if defined(__x86_64__)
    .symver older_\name, \old@GLIBC_\version
    mov %rcx, %r8
    mov %rdx, %rcx
    mov %rsi, %rdx
    mov %rdi, %rsi
    mov $1, %edi
    jmp older_\name@PLT
#else
    .symver older_\name, \old@GLIBC_2.17
    mov x4, x3
    mov x3, x2
    mov x2, x1
    mov x1, x0
    mov w0, #0
    b older_\name
#endif
    .size \name, . - \name
  .endr
.endm

older_stat 2.2.5, __xstat, stat, stat64
older_stat 2.2.5, __fxstat, fstat, fstat64
older_stat 2.2.5, __lxstat, lstat, lstat64
older_stat 2.4, __fxstatat, fstatat, fstatat64

/* Since 2.32, true while the process has one thread; libstdc++ then counts references without atomic
   operations. Here it never does. */
.section .rodata.__libc_single_threaded, "a", %progbits
.globl __libc_single_threaded
.hidden __libc_single_threaded
.type __libc_single_threaded, %object
__libc_single_threaded:
.byte 0
.size __libc_single_threaded, 1

#endif
.section .note.GNU-stack, "", %progbits
