//go:build !linux

package process

import "os/exec"

// detach does nothing, because the demo runs only on Linux; elsewhere the package only has to
// build.
func detach(*exec.Cmd) {}
