# Functions that install headers and pkg-config files, and the package `sortition` for CMake.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(sortition_package ${CMAKE_INSTALL_LIBDIR}/cmake/sortition)

# sortition_install_headers(COMPONENT FROM PREFIX FILES...): installs the headers FROM/FILE as PREFIX/FILE below the
# include folder. Includes that begin with one of SORTITION_HEADER_ROOTS become relative, so that they are found for any
# folder in a program's include path.
#
# The roots are pairs: what an include begins with, and the installed folder that this is.
set(SORTITION_HEADER_ROOTS "kernels/=sortition/kernels/" "sortition/=sortition/")
function(sortition_install_headers component from prefix)
  foreach(file ${ARGN})
    set(source ${from}/${file})
    cmake_path(GET file PARENT_PATH folder)
    set(destination ${CMAKE_INSTALL_INCLUDEDIR}/${prefix}/${folder})
    set(roots "${SORTITION_HEADER_ROOTS}")
    set(place /${prefix}/${folder})
    # Generated headers exist at the installation only.
    install(CODE "
      set(source \"${source}\")
      set(place \"${place}\")
      set(roots \"${roots}\")
      file(READ \"\${source}\" text)
      foreach(root \${roots})
        string(REGEX MATCH \"^([^=]*)=(.*)$\" pair \"\${root}\")
        set(begin \"\${CMAKE_MATCH_1}\")
        set(installed \"\${CMAKE_MATCH_2}\")
        string(REGEX MATCHALL \"#include \\\"\${begin}[^\\\"]*\\\"\" includes \"\${text}\")
        list(REMOVE_DUPLICATES includes)
        foreach(include \${includes})
          string(REGEX REPLACE \"#include \\\"\${begin}([^\\\"]*)\\\"\" \"\\\\1\" rest \"\${include}\")
          file(RELATIVE_PATH relative \"\${place}\" \"/\${installed}\${rest}\")
          string(REPLACE \"\${include}\" \"#include \\\"\${relative}\\\"\" text \"\${text}\")
        endforeach()
      endforeach()
      get_filename_component(name \"\${source}\" NAME)
      set(written \"${CMAKE_CURRENT_BINARY_DIR}/installed/${prefix}/${folder}/\${name}\")
      file(WRITE \"\${written}\" \"\${text}\")
      file(INSTALL \"\${written}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${destination}\")
      " COMPONENT ${component})
  endforeach()
endfunction()

# sortition_install_pkg_config(COMPONENT NAME DESCRIPTION REQUIRES LIBS)
function(sortition_install_pkg_config component name description requires libs)
  file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" up "${up}")
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc
"prefix=\${pcfiledir}/${up}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: ${name}
Description: ${description}
Version: ${PROJECT_VERSION}
Requires: ${requires}
Libs: -L\${libdir} ${libs}
Cflags: -I\${includedir}
")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT ${component})
endfunction()

# The package's files are the component `cmake`; the components `library` and `client` bring their own targets.
set(version_file ${PROJECT_BINARY_DIR}/sortition-config-version.cmake)
write_basic_package_version_file(${version_file} VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/sortition-config.cmake ${version_file} DESTINATION ${sortition_package}
  COMPONENT cmake)
