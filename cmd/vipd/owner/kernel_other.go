//go:build !linux

package owner

import (
	"errors"

	onhost "vipd/dataplane/failover"
)

// newKernel returns an error: owning VIPs needs Linux.
func newKernel(onhost.KernelOptions) (Kernel, error) {
	return nil, errors.New("owning VIPs needs Linux")
}
