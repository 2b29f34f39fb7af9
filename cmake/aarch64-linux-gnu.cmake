# SPDX-License-Identifier: Apache-2.0
# CMake's toolchain file for 64-bit ARM with Debian's cross compiler; its programs run in qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR
  qemu-aarch64 -cpu neoverse-n1 -L /usr/aarch64-linux-gnu -E ANYOP_TEST_EMULATED=1)
