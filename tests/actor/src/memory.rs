//! Memory that is allocated and freed by address or handle.

use crate::execute::Run;
use crate::functions::{self as f, Named};
use crate::problem::{Problem, allowed};
use crate::sites::{self, Function};
use crate::things::{Family, Held, What, free_of, kind_of};
use gputrace_test_rig::protocol::{
    Alloc, AllocKind, Expect, Kind, MemoryInfo, PoolCreate, Site, Undo, Via,
};
use std::ffi::c_int;

/// `CU_MEM_ATTACH_GLOBAL`
const ATTACH_GLOBAL: u64 = 1;
/// What a pitch is counted for: the driver takes 4, 8 or 16.
const PITCH_ELEMENT: u64 = 16;
/// `CU_AD_FORMAT_FLOAT`
const FLOAT: u32 = 0x20;
/// Bytes of an element of an array: four floats.
const ELEMENT: u64 = 16;
/// The widest that a row of an array is made, in elements.
const WIDEST: u64 = 16384;

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
struct Array {
    width: u64,
    height: u64,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
struct Array3d {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUmemPoolProps`
#[repr(C)]
pub struct PoolProperties {
    kind: u32,
    handle_types: u32,
    location_type: u32,
    location: i32,
    security: u64,
    max_size: u64,
    usage: u16,
    reserved: [u8; 54],
}

impl PoolProperties {
    /// A pool on this device; `handle_types` says how it may be exported.
    pub fn on(device: i32, handle_types: u32) -> Self {
        Self {
            kind: 1,
            handle_types,
            location_type: 1,
            location: device,
            security: 0,
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// What an allocating call gave.
struct Given {
    code: c_int,
    address: u64,
    /// As the driver says, or as was asked for.
    bytes: u64,
}

/// Where an allocation comes from and goes to, and what may come of it.
pub struct Put<'a> {
    /// The call site.
    pub site: Site,
    /// The pile.
    pub label: &'a str,
    /// The allowed results.
    pub expect: &'a Expect,
}

impl Run<'_> {
    /// `cuMemAlloc_v2` or what stands for it, reached in this way.
    pub fn allocating(&self, via: Via) -> Result<Function, Problem> {
        self.find(&f::MEM_ALLOC, via, false)
    }

    /// One allocation with `cuMemAlloc_v2`, which goes on the pile if it succeeds.
    pub fn alloc_one(
        &mut self,
        function: Function,
        bytes: u64,
        put: &Put<'_>,
    ) -> Result<(), Problem> {
        let (code, address) = sites::allocate(put.site, function, bytes);
        let what = What::Memory {
            kind: AllocKind::Device,
            ptsz: false,
        };
        let given = Given {
            code,
            address,
            bytes,
        };
        self.put(what, &given, put)
    }

    /// Counts what a call gave, and puts it on its pile.
    fn put(&mut self, what: What, given: &Given, put: &Put<'_>) -> Result<(), Problem> {
        let (kind, bytes) = (what.kind(), given.bytes);
        self.results.given(kind, put.site, given.code, bytes);
        if given.code == 0 {
            // Asked after the call: the runtime makes a context current if there is none.
            let held = Held {
                what,
                address: given.address,
                bytes,
                context: self.current()?,
            };
            self.session.world.state().push(put.label, held);
        }
        let message = || match what {
            What::Memory { .. } => format!("{}: allocating {bytes} bytes", put.site),
            _ => format!("{}: a {kind:?}", put.site),
        };
        allowed(message, given.code, put.expect)
    }

    /// Counts an object that a call gave, and puts it on its pile.
    pub fn put_object(
        &mut self,
        what: What,
        code: c_int,
        address: u64,
        put: &Put<'_>,
    ) -> Result<(), Problem> {
        let bytes = 0;
        let given = Given {
            code,
            address,
            bytes,
        };
        self.put(what, &given, put)
    }

    /// Counts addresses or access to something that a call gave, and puts it on its pile.
    pub fn put_sized(
        &mut self,
        what: What,
        code: c_int,
        (address, bytes): (u64, u64),
        put: &Put<'_>,
    ) -> Result<(), Problem> {
        let given = Given {
            code,
            address,
            bytes,
        };
        self.put(what, &given, put)
    }

    /// Allocates.
    pub fn alloc(&mut self, alloc: &Alloc) -> Result<(), Problem> {
        let named = function_of(alloc.kind);
        let function = self.find(named, alloc.via, alloc.ptsz)?;
        let pool = match alloc.kind {
            AllocKind::Pool => self.pool(&alloc.pool)?,
            _ => 0,
        };
        let put = Put {
            site: alloc.site,
            label: &alloc.label,
            expect: &alloc.expect,
        };
        let what = What::Memory {
            kind: alloc.kind,
            ptsz: alloc.ptsz,
        };
        for _ in 0..alloc.count {
            let given = give(alloc, function, pool)?;
            self.put(what, &given, &put)?;
        }
        Ok(())
    }

    /// Gives back what a pile holds, each thing by the function that belongs to it.
    pub fn give_back(&mut self, family: Family, undo: &Undo) -> Result<(), Problem> {
        self.undo(family, &undo.label, undo.count, undo.via, &undo.expect)
    }

    /// Gives back the newest things of a pile.
    pub fn undo(
        &mut self,
        family: Family,
        label: &str,
        count: Option<u64>,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        let world = self.session.world;
        let mut refused = Vec::new();
        let mut outcome = Ok(());
        let mut left = count;
        while left != Some(0) && outcome.is_ok() {
            let Some(held) = world.state().take(family, label) else {
                if left.is_some() {
                    outcome = Err(Problem::EmptyPile(label.to_owned()));
                }
                break;
            };
            left = left.map(|left| left - 1);
            let (named, ptsz) = held.what.undo();
            let function = match self.find(named, via, ptsz) {
                Ok(function) => function,
                Err(problem) => {
                    refused.push(held);
                    outcome = Err(problem);
                    break;
                }
            };
            let code = sites::give_back(function, &held.arguments());
            if code == 0 {
                self.given_back(&held);
            } else {
                self.results.taken(held.what.kind(), code, held.bytes);
                refused.push(held);
            }
            let what = || format!("{}({:#x})", named.symbol, held.address);
            outcome = allowed(what, code, expect);
        }
        let mut state = world.state();
        for held in refused.into_iter().rev() {
            state.put_back(label, held);
        }
        outcome
    }

    /// Something has been given back; physical memory is gone with its last reference only.
    fn given_back(&mut self, held: &Held) {
        let mut state = self.session.world.state();
        if let What::Handle { .. } = held.what {
            let gone = state.change(held.address, |physical| {
                physical.references = physical.references.saturating_sub(1);
            });
            drop(state);
            self.physical_gone(gone);
            return;
        }
        state.gone(held);
        drop(state);
        self.results.taken(held.what.kind(), 0, held.bytes);
        if let What::Memory {
            kind: AllocKind::Register,
            ..
        } = held.what
        {
            own::unmap(held.address, held.bytes);
        }
    }

    /// Calls the freeing function of a kind with addresses that were never allocated.
    pub fn free_bad(
        &mut self,
        kind: AllocKind,
        ptsz: bool,
        count: u64,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        /// Below every address that the driver hands out.
        const NOWHERE: u64 = 0x1000;
        let (named, ptsz) = free_of(kind, ptsz);
        let function = self.find(named, via, ptsz)?;
        (1..=count).try_for_each(|number| {
            let code = sites::give_back(function, &[NOWHERE + number, 0]);
            // By the function: it cannot tell managed memory from other.
            let kind = match kind_of(kind) {
                Kind::Managed => Kind::Device,
                kind => kind,
            };
            self.results.taken(kind, code, 0);
            allowed(|| format!("{} of nothing", named.symbol), code, expect)
        })
    }

    /// Asks for free and total memory.
    pub fn memory_info(&mut self, via: Via, expect: &Expect) -> Result<(), Problem> {
        let function = self.find(&f::MEM_INFO, via, false)?;
        let (mut free, mut total) = (0_u64, 0_u64);
        let arguments = [sites::pointer(&mut free), sites::pointer(&mut total)];
        let code = sites::call(Site::default(), function, &arguments, &[]);
        if code == 0 {
            self.results.memory = Some(MemoryInfo { free, total });
        }
        self.call(f::MEM_INFO.symbol, code, expect)
    }

    /// Creates pools.
    pub fn pool_create(&mut self, create: &PoolCreate) -> Result<(), Problem> {
        let function = self.find(&f::POOL_CREATE, create.via, false)?;
        let put = Put {
            site: create.site,
            label: &create.label,
            expect: &create.expect,
        };
        for _ in 0..create.count {
            let mut properties = PoolProperties::on(create.device, 1);
            let mut pool = 0_u64;
            let arguments = [sites::pointer(&mut pool), sites::pointer(&mut properties)];
            let code = sites::call(create.site, function, &arguments, &[]);
            self.put_object(What::Pool, code, pool, &put)?;
        }
        Ok(())
    }

    /// The newest pool with this label.
    pub fn pool(&self, label: &str) -> Result<u64, Problem> {
        self.newest(Family::Pools, label).map(|held| held.address)
    }

    /// The newest thing of a pile.
    pub fn newest(&self, family: Family, label: &str) -> Result<Held, Problem> {
        let state = self.session.world.state();
        let newest = state.pile(family, label).last().copied();
        newest.ok_or_else(|| Problem::EmptyPile(label.to_owned()))
    }
}

fn function_of(kind: AllocKind) -> &'static Named {
    match kind {
        AllocKind::Device => &f::MEM_ALLOC,
        AllocKind::Pitch => &f::MEM_ALLOC_PITCH,
        AllocKind::Managed => &f::MEM_ALLOC_MANAGED,
        AllocKind::Async => &f::MEM_ALLOC_ASYNC,
        AllocKind::Pool => &f::MEM_ALLOC_FROM_POOL,
        AllocKind::Host => &f::HOST_ALLOC,
        AllocKind::HostV2 => &f::ALLOC_HOST,
        AllocKind::Register => &f::HOST_REGISTER,
        AllocKind::Array => &f::ARRAY_CREATE,
        AllocKind::Array3d => &f::ARRAY_3D_CREATE,
        AllocKind::Mipmap => &f::MIPMAP_CREATE,
    }
}

/// Makes the call.
fn give(alloc: &Alloc, function: Function, pool: u64) -> Result<Given, Problem> {
    let mut address = 0_u64;
    let to = sites::pointer(&mut address);
    let mut bytes = alloc.bytes;
    let call = |arguments: &[u64]| sites::call(alloc.site, function, arguments, &[]);
    let code = match alloc.kind {
        AllocKind::Device | AllocKind::HostV2 => call(&[to, bytes]),
        AllocKind::Managed => call(&[to, bytes, ATTACH_GLOBAL]),
        AllocKind::Async | AllocKind::Host => call(&[to, bytes, 0]),
        AllocKind::Pool => call(&[to, bytes, pool, 0]),
        AllocKind::Pitch => {
            let (width, height) = rows(alloc)?;
            let mut pitch = 0_u64;
            let pitched = sites::pointer(&mut pitch);
            let code = call(&[to, pitched, width, height, PITCH_ELEMENT]);
            if code == 0 {
                bytes = pitch * height;
            }
            code
        }
        AllocKind::Register => {
            address = own::map(bytes)?;
            let code = call(&[address, bytes, 0]);
            if code != 0 {
                own::unmap(address, bytes);
            }
            code
        }
        AllocKind::Array => {
            let (width, height) = plane(bytes)?;
            let mut array = Array {
                width,
                height,
                format: FLOAT,
                channels: 4,
            };
            call(&[to, sites::pointer(&mut array)])
        }
        AllocKind::Array3d | AllocKind::Mipmap => {
            let (width, height) = plane(bytes)?;
            let mut array = Array3d {
                width,
                height,
                depth: 0,
                format: FLOAT,
                channels: 4,
                flags: 0,
            };
            if alloc.kind == AllocKind::Array3d && height.is_multiple_of(4) {
                (array.height, array.depth) = (height / 4, 4);
            }
            let description = sites::pointer(&mut array);
            if alloc.kind == AllocKind::Array3d {
                call(&[to, description])
            } else {
                bytes = (0..alloc.levels)
                    .map(|level| (width >> level).max(1) * (height >> level).max(1) * ELEMENT)
                    .sum();
                call(&[to, description, u64::from(alloc.levels)])
            }
        }
    };
    Ok(Given {
        code,
        address,
        bytes,
    })
}

/// Width and height in bytes and rows, for pitched memory.
fn rows(alloc: &Alloc) -> Result<(u64, u64), Problem> {
    let width = match alloc.width {
        // At most 1 MiB, and as much of it as the size is a multiple of.
        0 => 1 << alloc.bytes.trailing_zeros().min(20),
        width => width,
    };
    if alloc.bytes.is_multiple_of(width) && alloc.bytes > 0 {
        Ok((width, alloc.bytes / width))
    } else {
        Err(Problem::Value("`bytes` must be a multiple of `width`"))
    }
}

/// Width and height of an array of so many bytes, in elements.
fn plane(bytes: u64) -> Result<(u64, u64), Problem> {
    let elements = bytes / ELEMENT;
    if elements == 0 || !bytes.is_multiple_of(ELEMENT) {
        return Err(Problem::Value(
            "`bytes` of an array must be a multiple of 16",
        ));
    }
    let width = (1 << elements.trailing_zeros()).min(WIDEST);
    Ok((width, elements / width))
}

/// Memory of the process itself, to be registered.
mod own {
    use crate::problem::Problem;

    /// Maps anonymous memory that is never touched.
    pub fn map(bytes: u64) -> Result<u64, Problem> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: a new mapping, wherever there is room.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Problem::System {
                what: format!("mapping {bytes} bytes"),
                source: std::io::Error::last_os_error(),
            });
        }
        Ok(address.expose_provenance() as u64)
    }

    /// Unmaps what [`map`] gave.
    pub fn unmap(address: u64, bytes: u64) {
        let (Ok(address), Ok(size)) = (usize::try_from(address), usize::try_from(bytes)) else {
            return;
        };
        // SAFETY: a mapping of `map`, which nothing else knows.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), size) };
    }
}
