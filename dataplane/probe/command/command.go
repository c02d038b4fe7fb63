package command

import "errors"

// Command is a program with its arguments, user and input.
type Command struct {
	// Args are the program and its arguments.
	Args []string
	// User is the name of the user that runs the program. "" means balancer.ExecUser if vipd runs
	// as root, and otherwise vipd's own user.
	User string
	// Env is the program's environment in addition to PATH and LANG.
	Env []string
	// Input is the program's standard input. nil means that it is empty.
	Input []byte
	// Output is the number of bytes to retain from the end of stdout and of stderr. 0 means 4 KiB.
	Output int
}

// Result is the outcome of running a program.
type Result struct {
	// Stdout and Stderr are the last bytes that the program wrote to these streams.
	Stdout, Stderr []byte
	// Err is nil if the program exited with 0, and ErrLate if it was killed. Otherwise it names the
	// exit code or signal.
	Err error
}

// ErrLate is the error of a program that did not end in time and was killed.
var ErrLate = errors.New("it did not exit in time")
