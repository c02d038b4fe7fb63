package vm

import (
	"errors"
	"io"
	"time"
)

// GuestVar is an environment variable that is set in the guest.
const GuestVar = "VIPD_GUEST"

// TapMAC is the MAC of a guest's eth0.
const TapMAC = "02:76:69:70:64:01"

// ErrLimit is the error for a guest that was stopped at its time limit.
var ErrLimit = errors.New("the guest has reached its time limit")

// Options configures a guest. The zero value is usable.
type Options struct {
	// Memory is the guest's memory in MiB. 0 means 2048. The host allocates only memory that the
	// guest uses.
	Memory int
	// CPUs is the number of CPUs. 0 means 1. With several CPUs, an emulated guest may exceed time
	// limits; see the package's comment.
	CPUs int
	// Limit is how long the boot and the command may take. 0 means 30 minutes. At a load of 22, a
	// boot that usually lasts 10 seconds took more than five minutes.
	Limit time.Duration
	// Writable is a directory whose files the guest may change permanently. "" means none.
	Writable string
	// Tap is the device to which the guest's eth0 is connected; "" means none. Within calls a
	// function that opens the tap device in its network namespace; nil means the caller's
	// namespace.
	Tap    string
	Within func(func() error) error
	// Monitor is the path of a socket on which qemu speaks QMP, to stop and continue the guest. ""
	// means none.
	Monitor string
	// Dir is the directory in which the command starts. "" means the current directory.
	Dir string
	// Env has additional variables, as NAME=VALUE, for the command's environment.
	Env []string
	// Stdout and Stderr receive the command's output as it is written. nil discards it.
	Stdout, Stderr io.Writer
	// Log receives a sentence about each long step. nil discards it.
	Log func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	if o.Memory == 0 {
		o.Memory = 2048
	}
	if o.CPUs == 0 {
		o.CPUs = 1
	}
	if o.Limit == 0 {
		o.Limit = 30 * time.Minute
	}
	if o.Within == nil {
		o.Within = func(f func() error) error { return f() }
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return o
}
