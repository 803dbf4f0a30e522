# Defines flashoptim::torch_adapter, compiled in the project that uses it against the LibTorch that
# this project has. Also installed.
include("${CMAKE_CURRENT_LIST_DIR}/FlashoptimTorch.cmake")

# source: the folder of the adapter. cuda: whether the library steps CUDA tensors.
function(flashoptim_add_torch_adapter source cuda)
  if(TARGET flashoptim::torch_adapter)
    return()
  endif()
  set(sources archive.cc optimizer.cc plan.cc tensors.cc)
  # An absent backend is a file, not an #ifdef.
  if(cuda)
    list(APPEND sources streams.cc)
  else()
    list(APPEND sources no_cuda.cpp)
  endif()
  list(TRANSFORM sources PREPEND "${source}/")
  add_library(flashoptim_torch_adapter STATIC ${sources})
  add_library(flashoptim::torch_adapter ALIAS flashoptim_torch_adapter)
  target_include_directories(flashoptim_torch_adapter PUBLIC "${source}/include")
  target_link_libraries(flashoptim_torch_adapter PUBLIC flashoptim::flashoptim flashoptim::torch)
  set_target_properties(flashoptim_torch_adapter PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(cuda)
    find_package(CUDAToolkit REQUIRED)
    target_include_directories(flashoptim_torch_adapter SYSTEM
                               PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endfunction()
