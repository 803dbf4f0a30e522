# Install rules and the CMake package `flashoptim` (find_package(flashoptim CONFIG)).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/flashoptim")

install(
  TARGETS flashoptim flashoptim_capi
  EXPORT flashoptim-targets
  COMPONENT cpp
  INCLUDES
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/include/flashoptim"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  COMPONENT cpp)
install(
  EXPORT flashoptim-targets
  NAMESPACE flashoptim::
  DESTINATION "${package_dir}"
  COMPONENT cpp)

# The LibTorch adapter as source: whoever uses it compiles it against a LibTorch of their own.
set(FLASHOPTIM_TORCH_ADAPTER_DIR "${CMAKE_INSTALL_DATADIR}/flashoptim/torch_adapter")
install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/bindings/libtorch/"
  DESTINATION "${FLASHOPTIM_TORCH_ADAPTER_DIR}"
  COMPONENT cpp
  FILES_MATCHING REGEX "\\.(h|cc|cpp)$")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/flashoptim-config.cmake.in"
  "${PROJECT_BINARY_DIR}/flashoptim-config.cmake"
  INSTALL_DESTINATION "${package_dir}"
  PATH_VARS FLASHOPTIM_TORCH_ADAPTER_DIR)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/flashoptim-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(
  FILES "${PROJECT_BINARY_DIR}/flashoptim-config.cmake"
        "${PROJECT_BINARY_DIR}/flashoptim-config-version.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/FlashoptimFiles.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/FlashoptimTorch.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/FlashoptimTorchAdapter.cmake"
  DESTINATION "${package_dir}"
  COMPONENT cpp)

# For programs that are not built by CMake: the shared library with the C interface.
file(RELATIVE_PATH FLASHOPTIM_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" FLASHOPTIM_PC_PREFIX "${FLASHOPTIM_PC_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/flashoptim.pc.in" "${PROJECT_BINARY_DIR}/flashoptim.pc"
               @ONLY)
install(
  FILES "${PROJECT_BINARY_DIR}/flashoptim.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
  COMPONENT cpp)
