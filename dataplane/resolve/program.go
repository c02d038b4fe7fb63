package resolve

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/probe/command"
)

// These constants limit a program that prints endpoints.
const (
	programTimeout = 10 * time.Second
	maxOutput      = 1 << 20 // bytes
)

// runProgram runs a program and returns the endpoints that it prints, one per line. If a line can't
// be parsed, it returns an error and no endpoints.
func runProgram(ctx context.Context, args []string) (members []balancer.LookupRecord, err error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	result, err := command.Command{Args: args, Output: maxOutput}.Run(ctx)
	if err != nil {
		return nil, err
	}
	if result.Err != nil {
		return nil, fmt.Errorf("the program %w%s", result.Err, lastComplaint(result.Stderr))
	}
	if len(result.Stdout) >= maxOutput {
		return nil, fmt.Errorf("the program printed more than %d bytes", maxOutput)
	}
	n := 0
	for line := range strings.Lines(string(result.Stdout)) {
		n++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		m, err := parseMember(line)
		if err != nil {
			return nil, fmt.Errorf("line %d of its output: %w", n, err)
		}
		members = append(members, m)
	}
	return members, nil
}

func lastComplaint(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if last := strings.ToValidUTF8(string(lines[len(lines)-1]), ""); last != "" {
		return fmt.Sprintf(": %.200q", last)
	}
	return ""
}
