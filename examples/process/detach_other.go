//go:build !linux

package process

import "os/exec"

// detach does nothing. The demo runs only on Linux, and on other systems the package must only
// compile.
func detach(*exec.Cmd) {}
