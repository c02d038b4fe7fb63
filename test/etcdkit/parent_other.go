//go:build !linux

package etcdkit

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
