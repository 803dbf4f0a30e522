# What reading and writing files links: flashoptim::zlib, and flashoptim::zstd where libzstd is
# found. Also installed, for users of the static library.
#
# FLASHOPTIM_STATIC_DEPENDENCIES puts both and the C++ library into what is linked here, as far as
# this system has them as archives: a wheel must run where there is only the C library. None of
# their names may leave it, so that they cannot meet another copy in the process; Debian's
# libzstd.a, made for programs, asks for that too. What nobody calls goes: libstdc++'s random_device
# alone would ask for a newer C library.
if(NOT TARGET flashoptim::zlib)
  if(FLASHOPTIM_STATIC_DEPENDENCIES)
    include(CheckLinkerFlag)
    check_linker_flag(CXX -static-libstdc++ FLASHOPTIM_STATIC_LIBSTDCXX)
    if(FLASHOPTIM_STATIC_LIBSTDCXX)
      add_link_options(-static-libstdc++)
    endif()
    add_link_options(LINKER:--exclude-libs,ALL,--gc-sections)
    set(ZLIB_USE_STATIC_LIBS ON)
    find_package(ZLIB QUIET)
    set(ZLIB_USE_STATIC_LIBS OFF)
    set(flashoptim_zstd_static libzstd.a)
  endif()
  find_package(ZLIB REQUIRED)
  add_library(flashoptim_zlib INTERFACE IMPORTED GLOBAL)
  add_library(flashoptim::zlib ALIAS flashoptim_zlib)
  target_link_libraries(flashoptim_zlib INTERFACE ZLIB::ZLIB)
  find_path(FLASHOPTIM_ZSTD_INCLUDE zstd.h)
  find_library(FLASHOPTIM_ZSTD_LIBRARY NAMES ${flashoptim_zstd_static} zstd)
  mark_as_advanced(FLASHOPTIM_ZSTD_INCLUDE FLASHOPTIM_ZSTD_LIBRARY)
  if(FLASHOPTIM_ZSTD_INCLUDE AND FLASHOPTIM_ZSTD_LIBRARY)
    add_library(flashoptim_zstd INTERFACE IMPORTED GLOBAL)
    add_library(flashoptim::zstd ALIAS flashoptim_zstd)
    target_include_directories(flashoptim_zstd INTERFACE "${FLASHOPTIM_ZSTD_INCLUDE}")
    target_link_libraries(flashoptim_zstd INTERFACE "${FLASHOPTIM_ZSTD_LIBRARY}")
  endif()
endif()
