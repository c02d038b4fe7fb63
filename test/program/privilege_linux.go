package program

import (
	"os"
	"os/exec"
	"syscall"
)

// nobody is the unprivileged user and group on every Linux.
const nobody = 65534

func dropPrivilege(cmd *exec.Cmd) {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
			Pdeathsig:  syscall.SIGKILL,
		}
	}
}

func unprivilegedOwner(path string) error {
	if os.Geteuid() == 0 {
		return os.Chown(path, nobody, nobody)
	}
	return nil
}
