# SPDX-License-Identifier: Apache-2.0
# Route files as data of the library: the presets, written into one C++ file. Also a script:
# cmake -DFOLDER=src/core/router/read/presets -DOUT=presets.cc -P cmake/AnyopPresets.cmake

function(anyop_write_presets folder out)
  get_filename_component(folder "${folder}" ABSOLUTE)
  set(again CONFIGURE_DEPENDS)
  if(CMAKE_SCRIPT_MODE_FILE)
    set(again)
  endif()
  file(GLOB presets ${again} "${folder}/*.routes")
  file(RELATIVE_PATH source "${CMAKE_SOURCE_DIR}" "${folder}")
  set(records)
  foreach(preset IN LISTS presets)
    if(again)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${preset}")
    endif()
    get_filename_component(name "${preset}" NAME_WE)
    file(READ "${preset}" text)
    string(APPEND records "    {\"${name}\", R\"routes(${text})routes\"},\n")
  endforeach()
  # configure_file() would replace what looks like a variable in a preset; this writes when it differs.
  set(text "// Written by cmake/AnyopPresets.cmake from ${source}; do not edit.\n")
  string(APPEND text "#include \"router/read/presets.h\"\n\nnamespace anyop {\n\n"
    "const Preset kPresets[] = {\n${records}    {nullptr, nullptr}};\n\n}  // namespace anyop\n")
  set(before)
  if(EXISTS "${out}")
    file(READ "${out}" before)
  endif()
  if(NOT before STREQUAL text)
    file(WRITE "${out}" "${text}")
  endif()
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  anyop_write_presets("${FOLDER}" "${OUT}")
endif()
