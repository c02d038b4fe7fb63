//go:build !linux

package program

import "os/exec"

func dropPrivilege(*exec.Cmd) {}

func unprivilegedOwner(string) error { return nil }
