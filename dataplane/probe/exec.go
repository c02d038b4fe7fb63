package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"vipd/dataplane/probe/command"
)

// exec runs the definition's program. The check passes if the program exits with 0. The result's
// text is the last line of stderr, or of stdout if stderr is empty, because programs report the
// outcome last.
func (a *attempt) exec(ctx context.Context) (string, error) {
	a.notes.note("running %q", a.health.Command)
	result, err := command.Command{
		Args: a.health.Command, User: a.health.User,
		Env: []string{"VIPD_ADDRESS=" + a.at.Addr().String(), "VIPD_PORT=" + strconv.Itoa(int(a.at.Port()))},
	}.Run(ctx)
	if err != nil {
		return "", localf("%w", err)
	}
	output := a.lastOutput(result.Stdout, result.Stderr)
	switch {
	case errors.Is(result.Err, command.ErrLate):
		return "", fmt.Errorf("did not exit within %s and was killed%s", a.timeout(), suffix(output))
	case result.Err != nil:
		return "", fmt.Errorf("%w%s", result.Err, suffix(output))
	case output == "":
		return "exited with 0", nil
	}
	return output, nil
}

// lastOutput returns the last line that a program wrote, and adds the program's whole output to the
// transcript.
func (a *attempt) lastOutput(printed, complained []byte) string {
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

// lastLine returns the last line of text that is not empty, in readable form.
func lastLine(text string) (last string) {
	for line := range strings.Lines(text) {
		if line = readable(line); line != "" {
			last = line
		}
	}
	return last
}

func suffix(output string) string {
	if output == "" {
		return ""
	}
	return ": " + output
}
