//! Graphs.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{activity, graphs};
use std::ffi::{c_char, c_uint};

exports! {
    /// Creates a graph.
    cuGraphCreate(graph: *mut u64, flags: c_uint) => graphs::create, "cuGraphCreate", 10000;
    /// Copies a graph.
    cuGraphClone(copy: *mut u64, graph: u64) => graphs::clone, "cuGraphClone", 10000;
    /// Destroys a graph.
    cuGraphDestroy(graph: u64) => graphs::destroy, "cuGraphDestroy", 10000;
    /// Takes a node out.
    cuGraphDestroyNode(node: u64) => graphs::destroy_node, "cuGraphDestroyNode", 10000;
    /// The nodes of a graph.
    cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) => graphs::nodes, "cuGraphGetNodes", 10000;
    /// Adds a node.
    cuGraphAddKernelNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddKernelNode", 10000;
    /// Adds a node.
    cuGraphAddKernelNode_v2(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddKernelNode", 12000;
    /// Adds a node.
    cuGraphAddMemcpyNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddMemcpyNode", 10000;
    /// Adds a node.
    cuGraphAddMemsetNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddMemsetNode", 10000;
    /// Adds a node.
    cuGraphAddHostNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddHostNode", 10000;
    /// Adds a node.
    cuGraphAddChildGraphNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddChildGraphNode", 10000;
    /// Adds a node.
    cuGraphAddEmptyNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddEmptyNode", 10000;
    /// Adds a node.
    cuGraphAddEventRecordNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddEventRecordNode", 11010;
    /// Adds a node.
    cuGraphAddEventWaitNode(node: *mut u64, graph: u64) => graphs::add_node, "cuGraphAddEventWaitNode", 11010;
    /// Adds a node that allocates memory.
    cuGraphAddMemAllocNode(node: *mut u64, graph: u64, dependencies: *const u64, count: usize, parameters: *mut graphs::AllocParameters)
        => graphs::add_alloc, "cuGraphAddMemAllocNode", 11040;
    /// Adds a node that frees memory.
    cuGraphAddMemFreeNode(node: *mut u64, graph: u64, dependencies: *const u64, count: usize, pointer: u64)
        => graphs::add_free, "cuGraphAddMemFreeNode", 11040;
    /// Changes the order of nodes.
    cuGraphAddDependencies(graph: u64) => graphs::accept, "cuGraphAddDependencies", 10000;
    /// Changes the order of nodes.
    cuGraphRemoveDependencies(graph: u64) => graphs::accept, "cuGraphRemoveDependencies", 10000;
    /// Changes a node.
    cuGraphKernelNodeSetParams(node: u64) => graphs::accept_node, "cuGraphKernelNodeSetParams", 10000;
    /// Changes a node.
    cuGraphKernelNodeSetParams_v2(node: u64) => graphs::accept_node, "cuGraphKernelNodeSetParams", 12000;
    /// Changes a node.
    cuGraphMemcpyNodeSetParams(node: u64) => graphs::accept_node, "cuGraphMemcpyNodeSetParams", 10000;
    /// Changes a node.
    cuGraphMemsetNodeSetParams(node: u64) => graphs::accept_node, "cuGraphMemsetNodeSetParams", 10000;
    /// Makes a graph executable.
    cuGraphInstantiate(exec: *mut u64, graph: u64, error_node: *mut u64, log: *mut c_char, size: usize)
        => graphs::instantiate, "cuGraphInstantiate", 10000;
    /// Makes a graph executable.
    cuGraphInstantiate_v2(exec: *mut u64, graph: u64, error_node: *mut u64, log: *mut c_char, size: usize)
        => graphs::instantiate, "cuGraphInstantiate", 11000;
    /// Makes a graph executable.
    cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64)
        => graphs::instantiate_with_flags, "cuGraphInstantiateWithFlags", 11040;
    /// Makes a graph executable.
    cuGraphInstantiateWithParams(exec: *mut u64, graph: u64, parameters: *mut graphs::InstantiateParameters)
        => graphs::instantiate_with_parameters, "cuGraphInstantiateWithParams", 12000;
    /// Makes a graph executable.
    cuGraphInstantiateWithParams_ptsz(exec: *mut u64, graph: u64, parameters: *mut graphs::InstantiateParameters)
        => graphs::instantiate_with_parameters, "cuGraphInstantiateWithParams", 12000;
    /// Destroys an executable graph.
    cuGraphExecDestroy(exec: u64) => graphs::destroy_exec, "cuGraphExecDestroy", 10000;
    /// Changes an executable graph.
    cuGraphExecUpdate_v2(exec: u64) => graphs::accept_exec, "cuGraphExecUpdate", 12000;
    /// Changes a node of an executable graph.
    cuGraphExecKernelNodeSetParams(exec: u64) => graphs::accept_exec, "cuGraphExecKernelNodeSetParams", 10010;
    /// Changes a node of an executable graph.
    cuGraphExecKernelNodeSetParams_v2(exec: u64) => graphs::accept_exec, "cuGraphExecKernelNodeSetParams", 12000;
    /// Prepares an executable graph for its launch.
    cuGraphUpload(exec: u64) => graphs::accept_exec, "cuGraphUpload", 11010;
    /// Prepares an executable graph for its launch.
    cuGraphUpload_ptsz(exec: u64) => graphs::accept_exec, "cuGraphUpload", 11010;
    /// Launches an executable graph.
    cuGraphLaunch(exec: u64, stream: u64) => graphs::launch, "cuGraphLaunch", 10000;
    /// Launches an executable graph.
    cuGraphLaunch_ptsz(exec: u64, stream: u64) => graphs::launch, "cuGraphLaunch", 10000;
    /// Creates an object of the program's own.
    cuUserObjectCreate() => activity::not_supported, "cuUserObjectCreate", 11030;
}
