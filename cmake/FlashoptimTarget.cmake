# Flags that every target of the project shares, and the functions that apply them.

# Identical bits on every backend (docs/format.md) exclude any flag that lets the compiler
# regroup, contract or approximate floating-point arithmetic.
foreach(flags CMAKE_CXX_FLAGS CMAKE_CXX_FLAGS_RELEASE CMAKE_CXX_FLAGS_RELWITHDEBINFO CMAKE_CUDA_FLAGS)
  if("${${flags}}" MATCHES "-ffast-math|-Ofast|-funsafe-math-optimizations|use_fast_math")
    message(FATAL_ERROR "${flags} holds '${${flags}}': fast-math changes the results of a step")
  endif()
endforeach()

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

add_library(flashoptim_flags INTERFACE)

# -fno-math-errno changes no value; it lets std::sqrt and std::fma be one instruction.
target_compile_options(
  flashoptim_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno>"
            "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow>")

# At -O3 GCC 12 sees overlaps in concatenated strings and frees of the stack in moved vectors.
target_compile_options(
  flashoptim_flags
  INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict;-Wno-free-nonheap-object>")

# CMake 3.25 knows no C++20 for nvcc, hence --std here instead of a compile feature.
# nvcc passes generated code through the host compiler: -Wpedantic, -Wconversion and -Wshadow
# would complain about text that nobody wrote.
target_compile_options(
  flashoptim_flags
  INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:--std=c++20;--expt-relaxed-constexpr;--fmad=false;--prec-div=true;--prec-sqrt=true;--ftz=false>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off,-Wall,-Wextra>")

if(FLASHOPTIM_WERROR)
  target_compile_options(
    flashoptim_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
                               "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Werror>")
endif()

if(FLASHOPTIM_SANITIZE)
  set(sanitize "-fsanitize=${FLASHOPTIM_SANITIZE}" -fno-omit-frame-pointer)
  # GCC's flow-sensitive warnings misfire on instrumented code; the dev preset keeps them.
  target_compile_options(
    flashoptim_flags
    INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:${sanitize};-fno-sanitize-recover=all>"
      "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>")
  target_link_options(flashoptim_flags INTERFACE ${sanitize})
endif()

# Applies language level, flags and visibility to one target of the project.
function(flashoptim_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:flashoptim_flags>)
  set_target_properties(
    ${name}
    PROPERTIES CXX_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               CUDA_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(${name} PRIVATE "FLASHOPTIM_VERSION=\"${PROJECT_VERSION}\"")
endfunction()

# Object library of one layer; its objects end up in the one library `flashoptim`.
function(flashoptim_layer name)
  add_library(${name} OBJECT ${ARGN})
  flashoptim_target(${name})
  target_link_libraries(${name} PUBLIC flashoptim_core)
endfunction()
