package owner

import onhost "vipd/dataplane/failover"

// newKernel returns the Kernel of this host.
func newKernel(o onhost.KernelOptions) (Kernel, error) { return onhost.NewKernel(o) }
