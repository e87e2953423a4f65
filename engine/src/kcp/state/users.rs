//! Who uses which module.

use super::{KcpState, Wanted, kyma_key};

impl KcpState {
    /// Kymas whose status mentions a module: those that have it, and those that asked for it in vain.
    pub(super) fn users_of(&self, module: &str, change: &'static str) -> Vec<Wanted> {
        let mut users: Vec<&String> =
            self.kymas.iter().filter(|(_, k)| k.module_status(module).is_some()).map(|(n, _)| n).collect();
        users.sort();
        users.into_iter().map(|kyma| (kyma_key(kyma), change)).collect()
    }
}
