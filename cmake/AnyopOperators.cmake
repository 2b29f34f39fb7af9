# SPDX-License-Identifier: Apache-2.0
# Folders of operators to libraries: for anyop's own build and, by find_package(anyop), for others.
#
#   anyop_add_operators(<target> DIR...)
#
# makes <target> a loadable library of all operators below the folders: lib<target>.so, for
# anyop.load() in Python and AnyopLoadLibrary() in C. C++ programs find the typed functions,
# <namespace>/ops.h, by linking <target>::headers (the folder is <target>_INCLUDE_DIR); the library is
# loaded from $<TARGET_FILE:<target>>. Needs Python 3.10 or newer (3.10
# with the package tomli) for the generator, which runs when CMake does; a changed, new or vanished
# .toml makes the build run CMake again.

# How kernels are compiled. No flag here may change results between builds, and -ffast-math would
# change the floating-point mode of the whole process at link time.
set(ANYOP_KERNEL_FLAGS -O2 -fvisibility=hidden -fopenmp-simd -fno-math-errno -fno-trapping-math)

# The generator as python -c: its folder is the first argument, for it runs from the source tree and
# from the installed package alike.
set(ANYOP_RUN_CODEGEN "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); \
runpy.run_module('codegen', run_name='__main__', alter_sys=True)")

# Runs the generator. Sets <result>_TABLES, <result>_KERNELS, <result>_LINKED (objects and archives)
# and <result>_BUNDLED (libraries that the built one opens) in the caller; what it writes is below
# out.
function(anyop_generate result out library)
  set(kernels)
  set(schemas)
  foreach(folder IN LISTS ARGN)
    if(NOT IS_DIRECTORY "${folder}")
      message(FATAL_ERROR "anyop: no folder of operators at ${folder}")
    endif()
    set(patterns "${folder}/*.cc")
    if(ANYOP_CUDA)
      list(APPEND patterns "${folder}/*.cu")
    endif()
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${patterns})
    list(FILTER found EXCLUDE REGEX "_test\\.c[cu]$")
    list(APPEND kernels ${found})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS "${folder}/*.toml" "${folder}/*_triton.py")
    list(APPEND schemas ${found})
  endforeach()
  file(GLOB_RECURSE generator FOLLOW_SYMLINKS CONFIGURE_DEPENDS "${ANYOP_CODEGEN_ROOT}/codegen/*.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${schemas} ${generator})
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "${ANYOP_RUN_CODEGEN}" "${ANYOP_CODEGEN_ROOT}"
      --out "${out}" --library "${library}" ${ARGN}
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "anyop: the operators' schemas have the errors above")
  endif()
  include("${out}/operators.cmake")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ANYOP_EMBEDDED_TEXTS})
  set(ANYOP_CUDA_ARCHS ${ANYOP_CUDA_ARCHS} PARENT_SCOPE)
  foreach(arch IN LISTS ANYOP_CUDA_ARCHS)
    set(ANYOP_CUDA_FILES_${arch} ${ANYOP_CUDA_FILES_${arch}} PARENT_SCOPE)
  endforeach()
  set(ANYOP_CUDA_ONCE ${ANYOP_CUDA_ONCE} PARENT_SCOPE)
  foreach(number IN LISTS ANYOP_CUDA_ONCE)
    set(ANYOP_CUDA_ONCE_${number} ${ANYOP_CUDA_ONCE_${number}} PARENT_SCOPE)
  endforeach()
  set(${result}_TABLES ${ANYOP_TABLES} PARENT_SCOPE)
  set(${result}_KERNELS ${kernels} PARENT_SCOPE)
  set(${result}_LINKED ${ANYOP_LINKED} PARENT_SCOPE)
  set(${result}_BUNDLED ${ANYOP_BUNDLED} PARENT_SCOPE)
  if(ANYOP_EMBEDDED) # images that the generated sources hold
    set_property(SOURCE ${ANYOP_TABLES} PROPERTY OBJECT_DEPENDS ${ANYOP_EMBEDDED})
  endif()
endfunction()

# CUDA files compile one a core, whatever -j says: the largest takes 0.3 GB.
cmake_host_system_information(RESULT anyop_cores QUERY NUMBER_OF_LOGICAL_CORES)
set_property(GLOBAL APPEND PROPERTY JOB_POOLS anyop_cuda=${anyop_cores})

# Sets <result> to nvcc's flag for files that are read once, as for GPU number `least`: machine code
# for each of CMAKE_CUDA_ARCHITECTURES. Empty where these are no numbers, or one is below it.
function(anyop_read_once_flag result least)
  set(${result} "" PARENT_SCOPE)
  set(codes)
  foreach(arch IN LISTS CMAKE_CUDA_ARCHITECTURES)
    if(NOT arch MATCHES "^([0-9]+)(-real|-virtual)?$" OR CMAKE_MATCH_1 LESS least)
      return()
    endif()
    set(number ${CMAKE_MATCH_1})
    if(NOT arch MATCHES "virtual")
      list(APPEND codes "sm_${number}")
    endif()
    if(NOT arch MATCHES "real")
      list(APPEND codes "compute_${least}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES codes)
  list(JOIN codes "," codes)
  set(${result} "--generate-code=arch=compute_${least},code=[${codes}]" PARENT_SCOPE)
endfunction()

# Refuses an arch that nvcc lacks here, before anything is built. 90a is listed as 90.
function(anyop_check_arch arch files)
  if(NOT CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA")
    return()
  endif()
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-code OUTPUT_VARIABLE listed ERROR_QUIET)
  string(REGEX MATCHALL "sm_[0-9]+" known "${listed}")
  string(REGEX REPLACE "[af*]$" "" number "${arch}")
  if(known AND NOT "sm_${number}" IN_LIST known)
    string(REPLACE "sm_" "" known "${known}")
    string(REPLACE ";" ", " known "${known}")
    message(FATAL_ERROR "anyop: the operator file of ${files} has arch = \"${arch}\", which "
      "${CMAKE_CUDA_COMPILER} lacks; it has ${known}: write one of these, or install a newer CUDA")
  endif()
endfunction()

# Compiles tables and kernels as object libraries, a kernel that states its arch for that alone. Sets
# <target>_OBJECTS in the caller.
function(anyop_add_kernels target out tables kernels)
  set(cuda ${kernels})
  list(FILTER cuda INCLUDE REGEX "\\.cu$")
  list(FILTER kernels EXCLUDE REGEX "\\.cu$")
  anyop_add_objects(${target} "${out}" "${tables};${kernels}" ${ARGN})
  set(objects $<TARGET_OBJECTS:${target}>)
  foreach(number IN LISTS ANYOP_CUDA_ONCE)
    set(files ${ANYOP_CUDA_ONCE_${number}})
    list(FILTER files INCLUDE REGEX "\\.cu$")
    if(files AND ANYOP_CUDA)
      list(REMOVE_ITEM cuda ${files})
      anyop_add_objects(${target}_once_${number} "${out}" "${files}" ${ARGN})
      target_compile_definitions(${target}_once_${number} PRIVATE ANYOP_READ_ONCE=1)
      anyop_check_arch("${number}*" "${files}")
      anyop_read_once_flag(flag ${number})
      if(flag)
        target_compile_options(${target}_once_${number} PRIVATE "${flag}")
        set_target_properties(${target}_once_${number} PROPERTIES CUDA_ARCHITECTURES OFF)
      endif()
      set_target_properties(${target}_once_${number} PROPERTIES JOB_POOL_COMPILE anyop_cuda)
      list(APPEND objects $<TARGET_OBJECTS:${target}_once_${number}>)
    endif()
  endforeach()
  foreach(arch IN LISTS ANYOP_CUDA_ARCHS ITEMS any)
    set(files ${ANYOP_CUDA_FILES_${arch}})
    if(arch STREQUAL "any")
      set(files ${cuda})
    endif()
    if(files AND ANYOP_CUDA)
      list(REMOVE_ITEM cuda ${files})
      anyop_add_objects(${target}_${arch} "${out}" "${files}" ${ARGN})
      set_target_properties(${target}_${arch} PROPERTIES JOB_POOL_COMPILE anyop_cuda)
      list(APPEND objects $<TARGET_OBJECTS:${target}_${arch}>)
    endif()
    if(TARGET ${target}_${arch} AND NOT arch STREQUAL "any")
      anyop_check_arch(${arch} "${files}")
      set_target_properties(${target}_${arch} PROPERTIES CUDA_ARCHITECTURES ${arch}-real)
    endif()
  endforeach()
  set(${target}_OBJECTS ${objects} PARENT_SCOPE)
endfunction()

function(anyop_add_objects target out sources)
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE "${ANYOP_INCLUDE_DIR}" "${out}" ${ARGN})
  target_compile_features(${target} PRIVATE cxx_std_17 c_std_11)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:${ANYOP_KERNEL_FLAGS}>")
  if(ANYOP_CUDA)
    target_compile_definitions(${target} PRIVATE ANYOP_WITH_CUDA=1)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr ${ANYOP_CUDA_COMPRESS}>")
  endif()
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

function(anyop_add_operators target)
  set(folders)
  foreach(folder IN LISTS ARGN)
    get_filename_component(folder "${folder}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
    list(APPEND folders "${folder}")
  endforeach()
  if(NOT folders)
    message(FATAL_ERROR "anyop_add_operators(${target} DIR...): give at least one folder")
  endif()
  # CMake leaves files of other languages out without a word.
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  foreach(language C CXX)
    if(NOT language IN_LIST languages)
      message(FATAL_ERROR "anyop_add_operators(${target}): the tables are in C, the kernels in C++: "
        "project(... LANGUAGES C CXX), or enable_language(${language}) before")
    endif()
  endforeach()
  set(out "${CMAKE_CURRENT_BINARY_DIR}/${target}-generated")
  anyop_generate(found "${out}" "${target}" ${folders})
  anyop_add_kernels(${target}-objects "${out}" "${found_TABLES}" "${found_KERNELS}")
  add_library(${target} MODULE ${${target}-objects_OBJECTS})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  # A linker says of a kernel without its function no more than the function's name.
  file(GENERATE OUTPUT "${out}/objects-$<CONFIG>.txt"
    CONTENT "$<JOIN:${${target}-objects_OBJECTS},\n>\n")
  set(devices cpu)
  if(ANYOP_CUDA)
    string(APPEND devices ",cuda")
  endif()
  add_custom_command(TARGET ${target} PRE_LINK
    COMMAND "${Python_EXECUTABLE}" -c "${ANYOP_RUN_CODEGEN}" "${ANYOP_CODEGEN_ROOT}" --what functions
      --objects "${out}/objects-$<CONFIG>.txt" --devices ${devices} ${folders} VERBATIM)
  file(CONFIGURE OUTPUT "${out}/exports.map"
    CONTENT "{ global: AnyopLibraryEntry; local: *; };\n" @ONLY)
  target_link_options(${target} PRIVATE -Wl,--no-undefined -Wl,-z,now -Wl,-z,nodelete
    -Wl,-Bsymbolic "-Wl,--version-script=${out}/exports.map")
  set(${target}_INCLUDE_DIR "${out}" PARENT_SCOPE)
  add_library(${target}-headers INTERFACE)
  add_library(${target}::headers ALIAS ${target}-headers)
  target_include_directories(${target}-headers INTERFACE "${out}" "${ANYOP_INCLUDE_DIR}")
  add_dependencies(${target}-headers ${target}) # who includes them will load it
  target_link_libraries(${target} PRIVATE ${found_LINKED} ${ANYOP_CUDA_LIBRARIES} ${CMAKE_DL_LIBS})
  foreach(module IN LISTS found_BUNDLED) # where codegen/c/module_adapter.py looks for it
    set(modules "$<TARGET_FILE_DIR:${target}>/modules/${target}")
    add_custom_command(TARGET ${target} POST_BUILD
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${modules}"
      COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${module}" "${modules}/" VERBATIM)
  endforeach()
endfunction()
