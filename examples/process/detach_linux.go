package process

import (
	"os/exec"
	"syscall"
)

// detach gives the program its own process group, and makes the kernel end it if its starter is
// killed.
func detach(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
