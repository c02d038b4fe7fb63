//go:build !linux

package process

import "os/exec"

// detach does nothing here: the demo runs on Linux; elsewhere the package only has to build.
func detach(*exec.Cmd) {}
