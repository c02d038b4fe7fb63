// Package command runs a program that a configuration names: an exec health check, or a hook. The
// program runs without a shell, as its own user, in its own process group, and with no open files
// except its input and outputs. When it exits or its context is canceled, all remaining processes
// in its group are killed.
//
// A program runs only if no user except root and vipd's own user can replace it ([Trusted]).
package command
