//! Programs for the device, and work for it.

use crate::execute::Run;
use crate::functions::{self as f};
use crate::memory::{PoolProperties, Put};
use crate::problem::{Problem, allowed};
use crate::sites;
use crate::things::{Family, What};
use gputrace_test_rig::protocol::{
    Copy, CopyHow, Expect, GraphHow, GraphInstantiate, Launch, LaunchHow, ModuleHow, ModuleLoad,
    Site, SynchronizeHow, Via,
};

/// What stands for a compiled program; the rig's driver does not look into it.
static IMAGE: [u8; 64] = *b".version 8.0\n.target sm_80\n.visible .entry kernel() { ret; }\n\0\0\0";

/// `CUlaunchConfig`
#[repr(C)]
struct Configuration {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    attributes: u64,
    attribute_count: u32,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`
#[repr(C)]
struct AllocNode {
    pool: PoolProperties,
    access: u64,
    access_count: usize,
    bytes: u64,
    address: u64,
}

impl Run<'_> {
    /// Loads modules or libraries.
    pub fn module_load(&mut self, load: &ModuleLoad) -> Result<(), Problem> {
        let (named, what) = match load.how {
            ModuleHow::Data => (&f::MODULE_LOAD_DATA, What::Module),
            ModuleHow::DataEx => (&f::MODULE_LOAD_DATA_EX, What::Module),
            ModuleHow::Fatbin => (&f::MODULE_LOAD_FATBIN, What::Module),
            ModuleHow::File => (&f::MODULE_LOAD, What::Module),
            ModuleHow::Library => (&f::LIBRARY_LOAD_DATA, What::Library),
            ModuleHow::LibraryFile => (&f::LIBRARY_LOAD_FILE, What::Library),
        };
        let function = self.find(named, load.via, false)?;
        let image = IMAGE.as_ptr().expose_provenance() as u64;
        // Some file that is there.
        let file = c"/proc/self/exe".as_ptr().expose_provenance() as u64;
        let put = Put {
            site: load.site,
            label: &load.label,
            expect: &load.expect,
        };
        for _ in 0..load.count {
            let mut module = 0_u64;
            let to = sites::pointer(&mut module);
            let call = |arguments: &[u64], stack: &[u64]| {
                sites::call(load.site, function, arguments, stack)
            };
            let code = match load.how {
                ModuleHow::Data | ModuleHow::Fatbin => call(&[to, image], &[]),
                ModuleHow::DataEx => call(&[to, image, 0, 0, 0], &[]),
                ModuleHow::File => call(&[to, file], &[]),
                ModuleHow::Library => call(&[to, image, 0, 0, 0, 0], &[0, 0]),
                ModuleHow::LibraryFile => call(&[to, file, 0, 0, 0, 0], &[0, 0]),
            };
            self.put_object(what, code, module, &put)?;
        }
        Ok(())
    }

    /// Makes executable graphs.
    pub fn graph_instantiate(&mut self, graph: &GraphInstantiate) -> Result<(), Problem> {
        let named = match graph.how {
            GraphHow::Flags => &f::GRAPH_INSTANTIATE_FLAGS,
            GraphHow::V2 => &f::GRAPH_INSTANTIATE_V2,
            GraphHow::Params => &f::GRAPH_INSTANTIATE_PARAMS,
        };
        let function = self.find(named, graph.via, graph.ptsz)?;
        let mut template = 0_u64;
        let arguments = [sites::pointer(&mut template), 0];
        self.other(&f::GRAPH_CREATE, graph.via, &arguments, &Expect::default())?;
        if graph.memory > 0 {
            self.add_memory(template, graph.memory, graph.via)?;
        }
        let put = Put {
            site: graph.site,
            label: &graph.label,
            expect: &graph.expect,
        };
        for _ in 0..graph.count {
            let mut executable = 0_u64;
            // CUDA_GRAPH_INSTANTIATE_PARAMS: flags, stream, and two results.
            let mut parameters = [0_u64; 4];
            let to = sites::pointer(&mut executable);
            let call = |arguments: &[u64]| sites::call(graph.site, function, arguments, &[]);
            let code = match graph.how {
                GraphHow::Flags => call(&[to, template, 0]),
                GraphHow::V2 => call(&[to, template, 0, 0, 0]),
                GraphHow::Params => call(&[to, template, sites::pointer(&mut parameters)]),
            };
            self.put_object(What::Graph, code, executable, &put)?;
        }
        Ok(())
    }

    /// Adds a node that allocates and one that frees.
    fn add_memory(&mut self, graph: u64, bytes: u64, via: Via) -> Result<(), Problem> {
        let success = Expect::default();
        let mut parameters = AllocNode {
            pool: PoolProperties::on(0, 0),
            access: 0,
            access_count: 0,
            bytes,
            address: 0,
        };
        let mut node = 0_u64;
        let arguments = [
            sites::pointer(&mut node),
            graph,
            0,
            0,
            sites::pointer(&mut parameters),
        ];
        self.other(&f::GRAPH_ADD_ALLOC, via, &arguments, &success)?;
        let mut last = 0_u64;
        let arguments = [
            sites::pointer(&mut last),
            graph,
            sites::pointer(&mut node),
            1,
            parameters.address,
        ];
        self.other(&f::GRAPH_ADD_FREE, via, &arguments, &success)
    }

    /// Launches the newest executable graph of a pile.
    pub fn graph_launch(
        &mut self,
        label: &str,
        count: u64,
        ptsz: bool,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        let function = self.find(&f::GRAPH_LAUNCH, via, ptsz)?;
        let graph = self.newest(Family::Graphs, label)?.address;
        (0..count).try_for_each(|_| {
            let code = sites::call(Site::default(), function, &[graph, 0], &[]);
            self.results.launches.add(code, 0);
            allowed(|| f::GRAPH_LAUNCH.symbol.to_owned(), code, expect)
        })
    }

    /// The kernel in the newest module of a pile.
    fn kernel(&mut self, label: &str, via: Via) -> Result<u64, Problem> {
        let module = {
            let state = self.session.world.state();
            let pile = state.pile(Family::Modules, label);
            let newest = pile.iter().rfind(|held| held.what == What::Module);
            newest.map(|held| held.address)
        };
        let module = module.ok_or_else(|| Problem::EmptyPile(label.to_owned()))?;
        let mut kernel = 0_u64;
        let name = c"kernel".as_ptr().expose_provenance() as u64;
        let arguments = [sites::pointer(&mut kernel), module, name];
        self.other(&f::MODULE_FUNCTION, via, &arguments, &Expect::default())?;
        Ok(kernel)
    }

    /// Starts kernels.
    pub fn launch(&mut self, launch: &Launch) -> Result<(), Problem> {
        let named = match launch.how {
            LaunchHow::Kernel => &f::LAUNCH,
            LaunchHow::Ex => &f::LAUNCH_EX,
            LaunchHow::Cooperative => &f::LAUNCH_COOPERATIVE,
        };
        let function = self.find(named, launch.via, launch.ptsz)?;
        let kernel = self.kernel(&launch.label, launch.via)?;
        let mut configuration = Configuration {
            grid: [1; 3],
            block: [32, 1, 1],
            shared: 0,
            stream: 0,
            attributes: 0,
            attribute_count: 0,
        };
        let configuration = sites::pointer(&mut configuration);
        for _ in 0..launch.count {
            let code = match launch.how {
                LaunchHow::Ex => {
                    let arguments = [configuration, kernel, 0, 0];
                    sites::call(launch.site, function, &arguments, &[])
                }
                // Beyond six: block y and z, shared memory, stream, parameters, extra. The
                // cooperative form has no extra, and does not look at it.
                LaunchHow::Kernel | LaunchHow::Cooperative => {
                    let arguments = [kernel, 1, 1, 1, 32, 1];
                    sites::call(launch.site, function, &arguments, &[1, 0, 0, 0, 0, 0])
                }
            };
            self.results.launches.add(code, 0);
            allowed(|| named.symbol.to_owned(), code, &launch.expect)?;
        }
        Ok(())
    }

    /// Copies, fills or moves memory.
    pub fn copy(&mut self, copy: &Copy) -> Result<(), Problem> {
        let named = match copy.how {
            CopyHow::ToDevice => &f::COPY_TO_DEVICE,
            CopyHow::ToDeviceAsync => &f::COPY_TO_DEVICE_ASYNC,
            CopyHow::ToHost => &f::COPY_TO_HOST,
            CopyHow::OnDevice => &f::COPY_ON_DEVICE,
            CopyHow::Set => &f::SET,
            CopyHow::SetAsync => &f::SET_ASYNC,
            CopyHow::Prefetch => &f::PREFETCH,
        };
        let function = self.find(named, copy.via, copy.ptsz)?;
        let device = self.newest(Family::Memory, &copy.label)?.address;
        let size = usize::try_from(copy.bytes).unwrap_or(0);
        let mut buffer = match copy.how {
            CopyHow::ToDevice | CopyHow::ToDeviceAsync | CopyHow::ToHost => vec![0_u8; size],
            _ => Vec::new(),
        };
        let host = buffer.as_mut_ptr().expose_provenance() as u64;
        let bytes = copy.bytes;
        let arguments: &[u64] = match copy.how {
            CopyHow::ToDevice => &[device, host, bytes],
            CopyHow::ToDeviceAsync => &[device, host, bytes, 0],
            CopyHow::ToHost => &[host, device, bytes],
            CopyHow::OnDevice => &[device, device, bytes],
            CopyHow::Set => &[device, 0, bytes],
            CopyHow::SetAsync => &[device, 0, bytes, 0],
            // The size, the device to which it goes, the stream.
            CopyHow::Prefetch => &[device, bytes, 0, 0],
        };
        for _ in 0..copy.count {
            let code = sites::call(copy.site, function, arguments, &[]);
            self.results.copies.add(code, bytes);
            allowed(|| named.symbol.to_owned(), code, &copy.expect)?;
        }
        Ok(())
    }

    /// Waits for the device.
    pub fn synchronize(
        &mut self,
        count: u64,
        how: SynchronizeHow,
        ptsz: bool,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        let named = match how {
            SynchronizeHow::Context => &f::CTX_SYNCHRONIZE,
            SynchronizeHow::Stream => &f::STREAM_SYNCHRONIZE,
            SynchronizeHow::Event => &f::EVENT_SYNCHRONIZE,
        };
        let function = self.find(named, via, ptsz)?;
        let mut event = 0_u64;
        if how == SynchronizeHow::Event {
            let arguments = [sites::pointer(&mut event), 0];
            self.other(&f::EVENT_CREATE, via, &arguments, &Expect::default())?;
        }
        for _ in 0..count {
            // The default stream, or the event.
            let code = sites::call(Site::default(), function, &[event], &[]);
            self.results.synchronizations.add(code, 0);
            allowed(|| named.symbol.to_owned(), code, expect)?;
        }
        if how == SynchronizeHow::Event {
            self.other(&f::EVENT_DESTROY, via, &[event], &Expect::default())?;
        }
        Ok(())
    }
}
