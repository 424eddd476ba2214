//! Contexts.

use crate::execute::Run;
use crate::functions::{self as f};
use crate::problem::Problem;
use crate::sites;
use crate::world::Context;
use gputrace_test_rig::protocol::{ContextHow, Expect, Site, Via};

/// `CU_GREEN_CTX_DEFAULT_STREAM`, without which the real function refuses.
const DEFAULT_STREAM: u64 = 1;
/// `CU_DEV_RESOURCE_TYPE_SM`
const MULTIPROCESSORS: u64 = 1;

/// A `CUdevResource`, whose contents are the driver's own.
#[repr(C, align(8))]
struct Resource([u8; 256]);

impl Run<'_> {
    /// The context with this label.
    pub fn context(&self, label: &str) -> Result<Context, Problem> {
        let state = self.session.world.state();
        let context = state.contexts.get(label).copied();
        context.ok_or_else(|| Problem::NoContext(label.to_owned()))
    }

    fn name_context(&self, label: &str, context: Context) {
        let mut state = self.session.world.state();
        state.contexts.insert(label.to_owned(), context);
    }

    /// Creates a context and makes it current.
    pub fn create_context(
        &mut self,
        device: i32,
        label: &str,
        how: ContextHow,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        self.initialise()?;
        let mut handle = 0_u64;
        let to = sites::pointer(&mut handle);
        // As the C function reads it: 32 bits.
        let device = u64::from(device.cast_unsigned());
        let (named, arguments): (_, &[u64]) = match how {
            ContextHow::V2 => (&f::CTX_CREATE_V2, &[to, 0, device]),
            ContextHow::V3 => (&f::CTX_CREATE_V3, &[to, 0, 0, 0, device]),
            ContextHow::V4 => (&f::CTX_CREATE_V4, &[to, 0, 0, device]),
            ContextHow::Green => return self.create_green(device, label, via, expect),
        };
        let function = self.find(named, via, false)?;
        let code = sites::call(Site::default(), function, arguments, &[]);
        if code == 0 {
            let handle = usize::try_from(handle).unwrap_or(0);
            self.name_context(label, Context { handle, green: 0 });
        }
        self.call(named.symbol, code, expect)
    }

    /// Creates a green context, of all multiprocessors, and makes it current.
    fn create_green(
        &mut self,
        device: u64,
        label: &str,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        let success = Expect::default();
        let mut resource = Resource([0; 256]);
        let resource = sites::pointer(&mut resource);
        let arguments = [device, resource, MULTIPROCESSORS];
        self.other(&f::DEVICE_RESOURCE, via, &arguments, &success)?;
        let mut description = 0_u64;
        let arguments = [sites::pointer(&mut description), resource, 1];
        self.other(&f::RESOURCE_DESCRIPTION, via, &arguments, &success)?;

        let mut green = 0_u64;
        let function = self.find(&f::GREEN_CREATE, via, false)?;
        let arguments = [
            sites::pointer(&mut green),
            description,
            device,
            DEFAULT_STREAM,
        ];
        let code = sites::call(Site::default(), function, &arguments, &[]);
        self.call(f::GREEN_CREATE.symbol, code, expect)?;
        if code != 0 {
            return Ok(());
        }
        let mut handle = 0_u64;
        let arguments = [sites::pointer(&mut handle), green];
        self.other(&f::CTX_FROM_GREEN, via, &arguments, &success)?;
        let context = Context {
            handle: usize::try_from(handle).unwrap_or(0),
            green: usize::try_from(green).unwrap_or(0),
        };
        self.name_context(label, context);
        let code = self.session.world.cuda.set_current(context.handle)?;
        self.call(f::CTX_SET_CURRENT.symbol, code, &success)
    }

    /// Destroys a context with what it holds.
    pub fn destroy_context(
        &mut self,
        label: &str,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        let context = self.context(label)?;
        let (named, handle) = if context.green == 0 {
            (&f::CTX_DESTROY, context.handle)
        } else {
            (&f::GREEN_DESTROY, context.green)
        };
        let function = self.find(named, via, false)?;
        let code = sites::give_back(function, &[handle as u64]);
        if code == 0 {
            let mut state = self.session.world.state();
            state.contexts.remove(label);
            state.forget_context(context.handle, false);
        }
        self.call(named.symbol, code, expect)
    }

    /// Retains a primary context.
    pub fn retain_primary(
        &mut self,
        device: i32,
        label: &str,
        expect: &Expect,
    ) -> Result<(), Problem> {
        self.initialise()?;
        let mut handle = 0_u64;
        let function = self.find(&f::PRIMARY_RETAIN, Via::Driver, false)?;
        let arguments = [
            sites::pointer(&mut handle),
            u64::from(device.cast_unsigned()),
        ];
        let code = sites::call(Site::default(), function, &arguments, &[]);
        if code == 0 {
            let handle = usize::try_from(handle).unwrap_or(0);
            self.name_context(label, Context { handle, green: 0 });
            let mut state = self.session.world.state();
            let (known, retained) = state.primaries.entry(device).or_default();
            *known = handle;
            *retained += 1;
        }
        self.call(f::PRIMARY_RETAIN.symbol, code, expect)
    }

    /// Releases a primary context; what it holds goes with the last reference.
    pub fn release_primary(&mut self, device: i32, expect: &Expect) -> Result<(), Problem> {
        let function = self.find(&f::PRIMARY_RELEASE, Via::Driver, false)?;
        let code = sites::give_back(function, &[u64::from(device.cast_unsigned())]);
        if code == 0 {
            let mut state = self.session.world.state();
            if let Some((handle, retained)) = state.primaries.get_mut(&device) {
                *retained = retained.saturating_sub(1);
                let (handle, last) = (*handle, *retained == 0);
                if last {
                    state.forget_context(handle, true);
                }
            }
        }
        self.call(f::PRIMARY_RELEASE.symbol, code, expect)
    }

    /// Resets a primary context, however often it is retained.
    pub fn reset_primary(&mut self, device: i32, via: Via, expect: &Expect) -> Result<(), Problem> {
        let function = self.find(&f::PRIMARY_RESET, via, false)?;
        let code = sites::give_back(function, &[u64::from(device.cast_unsigned())]);
        if code == 0 {
            let mut state = self.session.world.state();
            if let Some((handle, _)) = state.primaries.get(&device).copied() {
                state.forget_context(handle, true);
            }
        }
        self.call(f::PRIMARY_RESET.symbol, code, expect)
    }
}
