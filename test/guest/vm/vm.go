package vm

import (
	"errors"
	"io"
	"time"
)

// GuestVar is set in the environment of what runs in the guest.
const GuestVar = "VIPD_GUEST"

// TapMAC is the MAC of a guest's eth0.
const TapMAC = "02:76:69:70:64:01"

// ErrLimit says that the time limit ended the guest.
var ErrLimit = errors.New("the guest has reached its time limit")

// Options say what a guest is like. The zero value is a usable one.
type Options struct {
	// Memory is in MiB. 0 means 2048. It is taken from the host only as the guest uses it.
	Memory int
	// CPUs is the number of processors. 0 means 1. With more, an emulated guest can be late, see the package's comment.
	CPUs int
	// Limit is how long the guest may take with boot and command. 0 means 30 minutes: a boot of
	// 10 seconds has taken more than five minutes on a machine at a load of 22.
	Limit time.Duration
	// Writable is a folder whose files the guest may change for good. "" means none.
	Writable string
	// Tap is a device that the guest's eth0 is connected to; "" means none. Within calls what opens it, in its network namespace; nil
	// means that of the caller.
	Tap    string
	Within func(func() error) error
	// Monitor is the path of a socket on which qemu speaks QMP, to stop and continue the guest. "" means nowhere.
	Monitor string
	// Dir is the folder where the command starts. "" means the current one.
	Dir string
	// Env is added to the environment of this process: NAME=VALUE.
	Env []string
	// Stdout and Stderr get what the command writes there, as it comes. nil means nobody.
	Stdout, Stderr io.Writer
	// Log gets a sentence about each step that takes long. nil means nobody.
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
