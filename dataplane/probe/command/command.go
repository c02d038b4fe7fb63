package command

import "errors"

// Command is a program with its arguments, user and input.
type Command struct {
	// Args are the program and its arguments.
	Args []string
	// User is the name of the user that it runs as. "" means balancer.ExecUser if vipd is root, and
	// otherwise vipd's own user.
	User string
	// Env is its environment besides PATH and LANG.
	Env []string
	// Input is its stdin; nil means that it is empty.
	Input []byte
	// Output is the number of bytes that are kept of stdout and of stderr: the last ones. 0 means
	// 4 KiB.
	Output int
}

// Result is the outcome of a program.
type Result struct {
	// Printed and Complained are the last bytes that it wrote to stdout and stderr.
	Printed, Complained []byte
	// Err is nil if it exited with 0, ErrLate if it was killed, and otherwise names its exit code
	// or signal.
	Err error
}

// ErrLate means that the program did not end in time and was killed.
var ErrLate = errors.New("it did not end in time")
