# What the Python package needs beside the library: the extension module, and the tap under libfuse.

set(RELAYFS_PYTHON_DIR . CACHE STRING "Where the package relayfs_fuse is installed, below the prefix")

find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(PkgConfig REQUIRED)
# 3.14: fuse_session_custom_io().
pkg_check_modules(FUSE3 REQUIRED IMPORTED_TARGET fuse3>=3.14)

file(GLOB headers CONFIGURE_DEPENDS include/relayfs/*.h)
list(APPEND headers ${CMAKE_CURRENT_BINARY_DIR}/include/relayfs/version.h)
# It makes a traced program of what includes it.
list(FILTER headers EXCLUDE REGEX "/trace\\.h$")
# What they call of the library, the extension module has.
set(package ${PROJECT_SOURCE_DIR}/../relayfs_fuse/native)
file(GLOB modules CONFIGURE_DEPENDS ${package}/*.py)
add_custom_command(
  OUTPUT _native.c
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/build_cffi.py
          ${CMAKE_CURRENT_BINARY_DIR}/_native.c ${package} ${headers}
  DEPENDS build_cffi.py c_declarations.py ${modules} ${headers}
  VERBATIM)

add_library(_native MODULE ${CMAKE_CURRENT_BINARY_DIR}/_native.c)
target_link_libraries(_native PRIVATE relayfs Python3::Module)
target_compile_options(_native PRIVATE -Werror=int-conversion -Werror=incompatible-pointer-types)
target_compile_definitions(_native PRIVATE Py_LIMITED_API=0x030b0000)
set_target_properties(_native PROPERTIES PREFIX "" SUFFIX ".abi3.so")
install(TARGETS _native LIBRARY DESTINATION ${RELAYFS_PYTHON_DIR} COMPONENT python)

# Loaded with RTLD_GLOBAL before pyfuse3: its symbols must be visible.
add_library(relayfs_tap MODULE fuse/tap.c fuse/at_once.c fuse/beside.c fuse/handover.c fuse/lane.c fuse/lookups.c fuse/polls.c
  fuse/reading.c fuse/replies.c)
target_link_libraries(relayfs_tap PRIVATE relayfs PkgConfig::FUSE3 warnings)
install(TARGETS relayfs_tap LIBRARY DESTINATION ${RELAYFS_PYTHON_DIR}/lib COMPONENT python)
if(SKBUILD)
  # A wheel has the library, too.
  set_target_properties(_native PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
  set_target_properties(relayfs_tap PROPERTIES INSTALL_RPATH "$ORIGIN")
endif()
