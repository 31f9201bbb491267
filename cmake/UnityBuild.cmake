# Many files as one: who builds once (./run's first build of the tools) parses each header once for a dozen
# files instead of for each. Half of the compile time; who edits wants files on their own, and builds without.
option(SMSIM_UNITY "compile the files of a library in batches" OFF)

# Files whose file-local names are another's of their library, or are types of members. A batch in which two collide does
# not compile: `./run` then builds without batches, and the new file belongs in this list.
set(own_names
    api/partition/partition_picture.cpp
    exec/checkpoint/hosts/host_checkpoint.cpp exec/cpu/thread_communicator.cpp exec/cuda/emulation/emulation.cpp
    exec/cuda/operator/fused_parts.cpp exec/cuda/operator/operators_attention.cpp
    exec/profile/profile.cpp
    interop/megatron/arguments.cpp interop/torchtitan.cpp interop/torchtitan_import.cpp
    jobs/job_report.cpp
    model/builder/vision/vision_transformer.cpp model/reader/huggingface/family_table.cpp
    model/reader/network_description.cpp
    partition/contiguous/contiguous_search.cpp partition/contiguous/lattice_pass.cpp
    partition/contiguous/linear_placement.cpp partition/contiguous/placement_bound.cpp
    partition/contiguous/search_graph.cpp partition/contiguous/stage_growth.cpp
    partition/free/free_search.cpp partition/hierarchical/hierarchical_placement.cpp
    partition/reader/dnn_partitioning.cpp
    partition/replicated/configuration_knapsack.cpp partition/replicated/replicated_check.cpp partition/replicated/replicated_placement.cpp
    partition/replicated/replicated_search.cpp
    planner/certificate.cpp planner/partition/path_bound.cpp planner/search.cpp
    schedule/plan/plan_sagemaker.cpp
    sim/cost/collective/library/parameter_server.cpp sim/cost/collective/library/smddp.cpp
    sim/cost/contention.cpp sim/cost/kernel/product.cpp sim/engine/simulate.cpp sim/evaluate.cpp sim/report/timeline_columns.cpp sim/scenario.cpp sim/uncertainty/interval.cpp
    sim/uncertainty/responses.cpp
    validation/published_framework.cpp)

function(build_in_batches target)
  if(SMSIM_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    # g++ collects its garbage too often for files so large: a tenth of their time.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=800000>)
  endif()
endfunction()

if(SMSIM_UNITY)
  # Each kind of schedule is a file with the same local functions, generate() and unsupported(); files of an order's search
  # share the names of their tolerances, and libonnx's headers are large.
  file(GLOB kinds RELATIVE "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/schedule/pipeline/*.cpp" "${CMAKE_SOURCE_DIR}/planner/order/*.cpp"
       "${CMAKE_SOURCE_DIR}/model/reader/onnx/*.cpp" "${CMAKE_SOURCE_DIR}/model/reader/onnx/library/*.cpp")
  foreach(source ${own_names} ${kinds})
    set_property(SOURCE "${CMAKE_SOURCE_DIR}/${source}" PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endif()
