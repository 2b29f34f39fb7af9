# SPDX-License-Identifier: Apache-2.0
# ANYOP_PREBUILT_GLUE=ON: the glues and the device for the torch that the building Python has, put into
# the package, so that its users need no compiler (python/anyop/native/library.py looks for them there).
# Flags are those of python/anyop/native/recipe.py, as on a user's machine.

option(ANYOP_PREBUILT_GLUE "build the glues and the device for the installed torch into the package"
  OFF)
if(NOT ANYOP_PREBUILT_GLUE)
  return()
endif()

function(anyop_add_glue name)
  set(here "${CMAKE_CURRENT_SOURCE_DIR}")
  anyop_ask_python(flags "import sys, torch; sys.path.insert(0, '${here}/python/anyop/native'); \
import recipe; print(torch.__version__, *recipe.${name}(torch, '${here}/bindings', \
'${here}/include', '${ANYOP_PACKAGE}/lib'), sep=';')")
  list(POP_FRONT flags version)
  list(REMOVE_ITEM flags -shared)
  set(sources ${flags})
  set(linking ${flags})
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  list(FILTER linking INCLUDE REGEX "^-(L|l|Wl,)")
  list(REMOVE_ITEM flags ${sources} ${linking})
  add_library(${name} MODULE ${sources})
  list(TRANSFORM flags REPLACE "^-I(.*/torch/include)$" "-isystem\\1") # warns of nothing
  target_compile_options(${name} PRIVATE ${flags})
  target_link_libraries(${name} PRIVATE ${linking})
  set_target_properties(${name} PROPERTIES
    PREFIX "" OUTPUT_NAME "${name}-${version}" SKIP_BUILD_RPATH ON
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 15 LIBRARY_OUTPUT_DIRECTORY "${ANYOP_PACKAGE}/lib")
  install(TARGETS ${name} LIBRARY DESTINATION anyop/lib)
  message(STATUS "anyop: ${name} for torch ${version} goes into the package")
endfunction()

anyop_add_glue(torch_glue)
anyop_add_glue(torch_aten_glue)
anyop_add_glue(torch_device)
add_dependencies(torch_device anyop)
