# What is installed, and the packages: `cmake --install build --prefix P`, `cpack --config build/CPackConfig.cmake -G DEB`
# (or TGZ). A program finds its data relative to itself (core/system/installed_data.h): P may be moved. Component `tools` is that;
# component `python` is what the Python package holds (pyproject.toml).
include(GNUInstallDirs)
# What is installed is built by its name, not with everything else.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

install(TARGETS smsim smplan smexec RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
if(HAS_SENTENCEPIECE)  # where smexec looks for it: exec/data/tokenizer/sentencepiece.cpp
  install(TARGETS smsim_sentencepiece LIBRARY DESTINATION lib/smsim COMPONENT tools)
endif()
# To DESTINATION/share/smsim.
function(install_data destination component)
  foreach(folder hardware_profiles framework_profiles)
    install(DIRECTORY "${CMAKE_SOURCE_DIR}/${folder}" DESTINATION "${destination}" COMPONENT ${component} FILES_MATCHING PATTERN "*.toml")
  endforeach()
  install(DIRECTORY "${CMAKE_SOURCE_DIR}/model/catalog" DESTINATION "${destination}/model" COMPONENT ${component} FILES_MATCHING PATTERN "*.toml")
endfunction()
install_data("${CMAKE_INSTALL_DATADIR}/smsim" tools)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/scenarios" DESTINATION "${CMAKE_INSTALL_DATADIR}/smsim" COMPONENT tools)
install(FILES "${CMAKE_SOURCE_DIR}/README.md" "${CMAKE_SOURCE_DIR}/CHANGELOG.md" "${CMAKE_SOURCE_DIR}/THIRD_PARTY.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT tools)
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME copyright COMPONENT tools)

# Man pages and completions, by the tools themselves.
set(manual_folder "${CMAKE_BINARY_DIR}/manual")
file(MAKE_DIRECTORY "${manual_folder}")
foreach(tool smsim smplan smexec)
  add_custom_command(TARGET ${tool} POST_BUILD VERBATIM
    COMMAND ${tool} --generate man > "${manual_folder}/${tool}.1"
    COMMAND ${tool} --generate bash > "${manual_folder}/${tool}"
    COMMAND ${tool} --generate zsh > "${manual_folder}/_${tool}"
    COMMAND ${tool} --generate fish > "${manual_folder}/${tool}.fish")
  install(FILES "${manual_folder}/${tool}.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT tools)
  install(FILES "${manual_folder}/${tool}" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT tools)
  install(FILES "${manual_folder}/_${tool}" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" COMPONENT tools)
  install(FILES "${manual_folder}/${tool}.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT tools)
endforeach()

# The tools in the environment's bin with their data in its share; the extension with its data beside it.
if(SKBUILD)
  install(TARGETS smsim smplan smexec RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
  if(HAS_SENTENCEPIECE)
    install(TARGETS smsim_sentencepiece LIBRARY DESTINATION "${SKBUILD_DATA_DIR}/lib/smsim" COMPONENT python)
  endif()
  install_data("${SKBUILD_DATA_DIR}/share/smsim" python)
  install(TARGETS python_extension LIBRARY DESTINATION smsim COMPONENT python)
  install_data(smsim/share/smsim python)
endif()

set(CPACK_PACKAGE_NAME smsim)
set(CPACK_PACKAGE_VENDOR "smsim")
set(CPACK_PACKAGE_CONTACT "the owners of this repository")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Simulator, planner and executor for distributed training")
set(CPACK_PACKAGE_DESCRIPTION_FILE "${CMAKE_SOURCE_DIR}/cmake/description.txt")
set(CPACK_RESOURCE_FILE_LICENSE "${CMAKE_SOURCE_DIR}/LICENSE")
set(CPACK_COMPONENTS_ALL tools)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
set(CPACK_PACKAGE_FILE_NAME "smsim_${PROJECT_VERSION}_${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_NAME smsim)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # which packages the tools' libraries are of
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "the owners of this repository <nobody@localhost>")
include(CPack)
