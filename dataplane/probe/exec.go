package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"vipd/dataplane/probe/command"
)

// exec runs the definition's program. It passes if it ends with 0; what was seen is the last line of its complaints, or else of
// what it prints: programs say at the end what it comes to.
func (a *attempt) exec(ctx context.Context) (string, error) {
	a.notes.note("running %q", a.health.Command)
	result, err := command.Command{
		Args: a.health.Command, User: a.health.User,
		Env: []string{"VIPD_ADDRESS=" + a.at.Addr().String(), "VIPD_PORT=" + strconv.Itoa(int(a.at.Port()))},
	}.Run(ctx)
	if err != nil {
		return "", localf("%w", err)
	}
	said := a.said(result.Printed, result.Complained)
	switch {
	case errors.Is(result.Err, command.ErrLate):
		return "", fmt.Errorf("not over within %s, killed%s", a.timeout(), after(said))
	case result.Err != nil:
		return "", fmt.Errorf("%w%s", result.Err, after(said))
	case said == "":
		return "exited with 0", nil
	}
	return said, nil
}

// said returns what a program came to say, and notes all that is kept of it.
func (a *attempt) said(printed, complained []byte) string {
	a.notes.data('<', printed)
	if len(complained) > 0 {
		a.notes.note("to stderr:")
		a.notes.data('<', complained)
	}
	if last := lastLine(string(complained)); last != "" {
		return last
	}
	return lastLine(string(printed))
}

// lastLine is the last line of text that is not empty, shortened.
func lastLine(text string) (last string) {
	for line := range strings.Lines(text) {
		if line = shown(line); line != "" {
			last = line
		}
	}
	return last
}

func after(said string) string {
	if said == "" {
		return ""
	}
	return ": " + said
}
