package command

import "errors"

// Command is a program and what it is given.
type Command struct {
	// Args are the program and its arguments.
	Args []string
	// User is who it runs as. "" means balancer.ExecUser where vipd is root, else vipd's own user.
	User string
	// Env is added to PATH and LANG, which are all that it has else.
	Env []string
	// Input is what it reads from stdin; nil means that there is none.
	Input []byte
}

// Result is how a program has ended.
type Result struct {
	// Printed and Complained are the ends of what it wrote to stdout and stderr.
	Printed, Complained []byte
	// Err is nil if it exited with 0, ErrLate if its time was over, and otherwise says with what it ended.
	Err error
}

// ErrLate means that the program was killed because its time was over.
var ErrLate = errors.New("its time was over")
