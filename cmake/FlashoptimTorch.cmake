# Defines flashoptim::torch, the LibTorch that the adapter is compiled against. Also installed.
#
# A project that has called find_package(Torch) gets that one. Otherwise it is looked for like
# find_package does (CMAKE_PREFIX_PATH, Torch_DIR), or in the interpreter FLASHOPTIM_TORCH_PYTHON.
# Its own package is not loaded: that of a CUDA build wants a CUDA toolkit, and runs a program on
# its GPU, even where no kernel is compiled.
if(TARGET flashoptim::torch)
  return()
endif()

add_library(flashoptim_torch INTERFACE IMPORTED GLOBAL)
add_library(flashoptim::torch ALIAS flashoptim_torch)
target_compile_features(flashoptim_torch INTERFACE cxx_std_20)

# What LibTorch needs in turn it finds when it is loaded; a linker would take what the system has.
if(NOT APPLE)
  target_link_options(flashoptim_torch INTERFACE "LINKER:--allow-shlib-undefined")
endif()

if(TARGET torch)
  target_link_libraries(flashoptim_torch INTERFACE ${TORCH_LIBRARIES})
  return()
endif()

if(FLASHOPTIM_TORCH_PYTHON)
  execute_process(
    COMMAND "${FLASHOPTIM_TORCH_PYTHON}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_of_python
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE torch_missing)
  if(torch_missing)
    message(FATAL_ERROR "${FLASHOPTIM_TORCH_PYTHON} has no torch (pip install torch)")
  endif()
  # An interpreter that is named is asked for: no other torch is looked for.
  set(FLASHOPTIM_TORCH_CONFIG "${torch_of_python}/share/cmake/Torch" CACHE PATH "" FORCE)
endif()
find_path(
  FLASHOPTIM_TORCH_CONFIG TorchConfig.cmake
  HINTS ${Torch_DIR} ${Torch_ROOT} ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
  PATH_SUFFIXES Torch share/cmake/Torch)
mark_as_advanced(FLASHOPTIM_TORCH_CONFIG)
if(NOT FLASHOPTIM_TORCH_CONFIG)
  message(
    FATAL_ERROR
      "LibTorch was not found. Unpack one and add it to CMAKE_PREFIX_PATH, or use that of a Python: "
      "-DFLASHOPTIM_TORCH_PYTHON=/path/to/python3")
endif()

cmake_path(SET torch_root NORMALIZE "${FLASHOPTIM_TORCH_CONFIG}/../../..")
target_include_directories(
  flashoptim_torch SYSTEM INTERFACE "${torch_root}/include"
                                    "${torch_root}/include/torch/csrc/api/include")
foreach(name torch_cpu c10)
  target_link_libraries(flashoptim_torch
                        INTERFACE "${torch_root}/lib/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
endforeach()
# Nothing refers to the CUDA half by name: it registers itself when it is loaded.
if(EXISTS "${torch_root}/lib/libtorch_cuda.so")
  target_link_libraries(flashoptim_torch INTERFACE "${torch_root}/lib/libc10_cuda.so")
  target_link_options(flashoptim_torch INTERFACE
                      "LINKER:--no-as-needed,${torch_root}/lib/libtorch_cuda.so,--as-needed")
endif()
# Until 2.6 the wheels had the strings of GCC 4, with which nothing links that other code compiled.
include(CheckCXXSourceCompiles)
include(CMakePushCheckState)
cmake_push_check_state(RESET)
set(CMAKE_REQUIRED_LIBRARIES flashoptim_torch)
set(CMAKE_REQUIRED_FLAGS -std=c++20)
check_cxx_source_compiles(
  "#include <c10/util/Exception.h>
   int main() { throw c10::Error({__func__, __FILE__, 0}, std::string(\"\")); }"
  FLASHOPTIM_TORCH_LINKS)
cmake_pop_check_state()
if(NOT FLASHOPTIM_TORCH_LINKS)
  message(FATAL_ERROR "A program that uses ${torch_root} does not link. Is it PyTorch 2.7 or newer, for "
                      "this compiler's C++ ABI? CMakeFiles/CMakeError.log in the build folder says more.")
endif()
