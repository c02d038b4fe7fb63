package probe

import (
	"bufio"
	"context"
	"io"
	"strings"
)

// maxAgentLine is the maximum length of an agent's answer, in bytes.
const maxAgentLine = 400

// agent connects to an agent, and returns the first line that the agent sends.
func (a *attempt) agent(ctx context.Context) (string, error) {
	conn, err := a.connect(ctx, "tcp")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	abort(conn)
	line, err := bufio.NewReader(io.LimitReader(a.record(conn), maxAgentLine)).ReadString('\n')
	if strings.TrimSpace(line) == "" {
		if err == nil {
			err = io.EOF
		}
		return "", a.readError(err, len(line), "the answer")
	}
	return strings.TrimSpace(line), nil // an agent may close the connection without a line end
}
