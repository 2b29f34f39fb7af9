# SPDX-License-Identifier: Apache-2.0
# Options of the build and the flags that follow from them; what cannot be is refused by name.

set(ANYOP_WITH_CUDA AUTO CACHE STRING
  "CUDA kernels: AUTO (when nvcc and a .cu file are there), ON or OFF")
set_property(CACHE ANYOP_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ANYOP_SANITIZE "" CACHE STRING "empty, address, undefined or thread")
set_property(CACHE ANYOP_SANITIZE PROPERTY STRINGS "" address undefined thread)
set(ANYOP_OPS_DIRS "" CACHE STRING
  "further folders of operators to be compiled into libanyop, separated by ;")
set(ANYOP_CPU_ISA "" CACHE STRING
  "one x86-64 level for all kernels (1, 3 or 4) instead of a choice at load; for tests")
option(ANYOP_BUILD_TESTS "build the C++ unit tests" OFF)
option(ANYOP_WERROR "treat warnings as errors" OFF)

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "anyop builds on Linux; this is ${CMAKE_SYSTEM_NAME}")
endif()
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  message(FATAL_ERROR "anyop builds with g++ or clang++; found ${CMAKE_CXX_COMPILER_ID}")
endif()

string(TOUPPER "${ANYOP_WITH_CUDA}" with_cuda)
if(NOT with_cuda MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ANYOP_WITH_CUDA is '${ANYOP_WITH_CUDA}', expected AUTO, ON or OFF")
endif()
if(NOT ANYOP_SANITIZE MATCHES "^(|address|undefined|thread)$")
  message(FATAL_ERROR
    "ANYOP_SANITIZE is '${ANYOP_SANITIZE}', expected address, undefined, thread or nothing")
endif()
if(NOT ANYOP_CPU_ISA MATCHES "^(|1|3|4)$")
  message(FATAL_ERROR "ANYOP_CPU_ISA is '${ANYOP_CPU_ISA}', expected 1, 3, 4 or nothing")
endif()
if(ANYOP_CPU_ISA AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  message(FATAL_ERROR
    "ANYOP_CPU_ISA=${ANYOP_CPU_ISA} is a level of x86-64; this is ${CMAKE_SYSTEM_PROCESSOR}")
endif()
foreach(folder IN LISTS ANYOP_OPS_DIRS)
  if(NOT IS_DIRECTORY "${folder}")
    message(FATAL_ERROR "ANYOP_OPS_DIRS names ${folder}, which is no folder")
  endif()
endforeach()

# CUDA: wanted, possible, or an error that names what is missing.
set(ANYOP_CUDA OFF)
set(ANYOP_CUDA_LIBRARIES)
if(NOT with_cuda STREQUAL "OFF")
  set(cuda_sources)
  foreach(folder IN ITEMS "${CMAKE_CURRENT_SOURCE_DIR}/ops" ${ANYOP_OPS_DIRS})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS "${folder}/*.cu")
    list(APPEND cuda_sources ${found})
  endforeach()
  find_program(ANYOP_NVCC NAMES "$ENV{CUDACXX}" nvcc PATHS /usr/local/cuda/bin)
  if(with_cuda STREQUAL "ON" AND NOT ANYOP_NVCC)
    message(FATAL_ERROR "ANYOP_WITH_CUDA is ON, but there is no nvcc on PATH or in "
      "/usr/local/cuda/bin; install the CUDA toolkit, or set the environment variable CUDACXX to "
      "nvcc's path")
  endif()
  if(with_cuda STREQUAL "ON" AND NOT cuda_sources)
    message(FATAL_ERROR
      "ANYOP_WITH_CUDA is ON, but no operator has a CUDA kernel (.cu); use AUTO or OFF")
  endif()
  if(ANYOP_NVCC AND cuda_sources)
    set(ANYOP_CUDA ON)
    set(CMAKE_CUDA_COMPILER "${ANYOP_NVCC}")
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # Code for Ampere and Hopper; newer GPUs compile the second one's PTX at start.
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    # Never the shared runtime: which one a process has is the framework's choice.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    find_package(CUDAToolkit REQUIRED)
    if(CUDAToolkit_VERSION VERSION_LESS 12)
      message(FATAL_ERROR "anyop needs CUDA 12 or newer; ${ANYOP_NVCC} is "
        "${CUDAToolkit_VERSION}; update it, or use -DANYOP_WITH_CUDA=OFF")
    endif()
    set(ANYOP_CUDA_LIBRARIES CUDA::cudart_static)
    # Code for GPUs is most of the library.
    set(ANYOP_CUDA_COMPRESS "-Xfatbin=-compress-all")
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13)
      set(ANYOP_CUDA_COMPRESS "--compress-mode=size")
    endif()
  endif()
endif()
message(STATUS "anyop: CUDA kernels ${ANYOP_CUDA} (ANYOP_WITH_CUDA=${ANYOP_WITH_CUDA})")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG" CACHE STRING "" FORCE)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG" CACHE STRING "" FORCE)
# Of the host's part, which starts kernels: -O2 is half as much more of a compiler's time for it.
set(CMAKE_CUDA_FLAGS_RELEASE "-O1 -DNDEBUG -Xcompiler=-finline-functions,-finline-small-functions"
  CACHE STRING "" FORCE)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)
if(ANYOP_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
set(ANYOP_LINK_FLAGS -Wl,--no-undefined -Wl,-z,now)
if(ANYOP_SANITIZE)
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:C,CXX>:SHELL:-fsanitize=${ANYOP_SANITIZE} -fno-omit-frame-pointer -g>")
  add_link_options(-fsanitize=${ANYOP_SANITIZE})
  if(ANYOP_SANITIZE STREQUAL "undefined")
    # vptr would have each library export its types' names.
    add_compile_options(
      "$<$<COMPILE_LANGUAGE:C,CXX>:SHELL:-fno-sanitize-recover=undefined -fno-sanitize=vptr>")
  endif()
endif()
