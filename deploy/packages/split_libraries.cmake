# Runs in CPack before it packs. The component of a library installs what programs load and what compilers read. This
# moves the versioned library from the package for compilers to the one for programs (CPACK_SORTITION_RUNTIMES).
foreach(pair ${CPACK_SORTITION_RUNTIMES})
  string(REGEX MATCH "^(.+)=(.+)$" matched ${pair})
  set(from ${CPACK_TEMPORARY_DIRECTORY}/${CMAKE_MATCH_1})
  set(to ${CPACK_TEMPORARY_DIRECTORY}/${CMAKE_MATCH_2})
  file(GLOB_RECURSE libraries RELATIVE ${from} ${from}/lib*.so.*)
  foreach(library ${libraries})
    get_filename_component(folder ${library} DIRECTORY)
    file(MAKE_DIRECTORY ${to}/${folder})
    file(RENAME ${from}/${library} ${to}/${library})
  endforeach()
endforeach()
