package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/runlock"
	"vipd/cmd/internal/table"
	"vipd/store/etcd"
	"vipd/store/tomlfile"
)

// world is what this process was given.
type world struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time
	// root: this process may do what takes root, as far as there is such a thing on this system.
	root bool
	// outTerminal and errTerminal: somebody watches; color: stdout may have colours.
	outTerminal, errTerminal, color bool
	// width is how many columns the terminal has that stdout is; 0: it is none.
	width int
}

// call is one run of one verb.
type call struct {
	context.Context
	world
	flags *cli.Context
	// args are the arguments behind the verb.
	args []string
	verb *verb
	// format is the form of the output, one of the verb's.
	format string
	client *api.Client  // see daemon
	writer *etcd.Writer // see fleet
	// members are the URLs of etcd, once writer is there.
	members []string
}

// prepare checks what all verbs share: the form of the output and the number of arguments.
func (c *call) prepare() (err error) {
	if len(c.verb.formats) > 0 {
		if c.format, err = choice("-o", c.flags.String("output"), c.verb.formats); err != nil {
			return err
		}
	}
	return c.verb.counted(c.args)
}

func (c *call) close() {
	if c.client != nil {
		c.client.Close()
	}
	if c.writer != nil {
		_ = c.writer.Close() // what it did has been answered
	}
}

// daemon returns the client of the daemon that the flags name. A config that can't be read keeps nobody from a daemon
// that still runs: where the file is there, what it still says of the socket counts, or else the default.
func (c *call) daemon() (*api.Client, error) {
	if c.client == nil {
		socket, err := c.socket()
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			socket = c.socketDespiteMistakes()
			if !errors.Is(err, fs.ErrPermission) {
				fmt.Fprintf(c.stderr, "vipctl: %s is no TOML (\"vipctl check\" says where); asking the daemon at %s\n", c.flags.String("config"), socket)
			}
		}
		c.client = api.NewClient(socket)
		c.client.Absent = func() string { return c.absent(socket, err) }
	}
	return c.client, nil
}

// absent says what is known of a daemon whose socket is not there. Unread is why the config that may name another one
// could not be read.
func (c *call) absent(socket string, unread error) string {
	if errors.Is(unread, fs.ErrPermission) {
		return fmt.Sprintf("there is no such socket, and the config %s, which may name another, is not open to you: use sudo, or name the socket with --socket",
			c.flags.String("config"))
	}
	conf, _, err := config.Load(c.flags.String("config"))
	if err != nil {
		conf = config.Default()
	}
	if !samePath(conf.API.Socket, socket) {
		return ""
	}
	if pid := runlock.Holder(lockFile(conf.RunDir)); pid != 0 {
		return fmt.Sprintf("its socket was removed, and vipd runs (pid %d): restart it", pid)
	}
	return ""
}

// samePath reports whether two paths are the same text once they are absolute.
func samePath(a, b string) bool {
	x, errX := filepath.Abs(a)
	y, errY := filepath.Abs(b)
	return errX == nil && errY == nil && x == y
}

const defaultSocket = "/run/vipd/vipd.sock"

// socket finds the daemon's socket: the flag, the environment, the config, or the default. Of the config it reads
// nothing else, so that a mistake elsewhere in there leaves the daemon within reach.
func (c *call) socket() (string, error) {
	if s := c.flags.String("socket"); s != "" {
		return s, nil
	}
	file := c.flags.String("config")
	var config struct {
		API struct {
			Socket string `toml:"socket"`
		} `toml:"api"`
	}
	text, err := tomlfile.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && file == defaultConfig {
		return defaultSocket, nil
	}
	if err == nil {
		err = tomlfile.Decode(file, text, &config)
	}
	if err != nil {
		return "", fmt.Errorf("looking for the daemon's socket in its config: %w (--socket names it)", err)
	}
	return c.socketFrom(config.API.Socket), nil
}

// socketFrom is the place that api.socket of the config means.
func (c *call) socketFrom(written string) string {
	switch {
	case written == "":
		return defaultSocket
	case filepath.IsAbs(written):
		return written
	}
	return filepath.Join(filepath.Dir(c.flags.String("config")), written) // as the daemon reads it
}

// socketDespiteMistakes looks for api.socket in the lines of a config that is no TOML as a whole.
func (c *call) socketDespiteMistakes() string {
	text, err := tomlfile.ReadFile(c.flags.String("config"))
	if err != nil {
		return defaultSocket
	}
	section := ""
	for line := range strings.Lines(string(text)) {
		var config struct {
			Socket string `toml:"socket"`
			API    struct {
				Socket string `toml:"socket"`
			} `toml:"api"`
		}
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") {
			name, _, _ := strings.Cut(line[1:], "]")
			section = strings.TrimSpace(name)
			continue
		}
		if err := tomlfile.Decode("", []byte(line), &config); err != nil {
			continue
		}
		switch {
		case section == "api" && config.Socket != "":
			return c.socketFrom(config.Socket)
		case section == "" && config.API.Socket != "":
			return c.socketFrom(config.API.Socket)
		}
	}
	return defaultSocket
}

// print writes text to stdout.
func (c *call) print(text string) error {
	if _, err := io.WriteString(c.stdout, text); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// printTable writes a table in the form asked for, or, where it has no rows, the sentence to stderr.
func (c *call) printTable(t *table.Table, empty string) error {
	if t.Len() == 0 {
		fmt.Fprintf(c.stderr, "%s\n", empty)
		return nil
	}
	return c.print(t.Text(table.Form{Wide: c.format == formWide, Color: c.color, Width: c.room(0)}))
}

// room is how wide a table may be that is moved in by so much; 0: as wide as it is. Only somebody who watches can ask for
// more.
func (c *call) room(in int) int {
	if c.width == 0 || c.format == formWide {
		return 0
	}
	return c.width - in
}

// printJSON writes v as the API gives it, indented.
func (c *call) printJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return c.print(b.String())
}

// paint colours text where colours are wanted.
func (c *call) paint(text string, s table.Style) string {
	if !c.color {
		return text
	}
	return table.Paint(text, s)
}

// The forms of output.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formTOML  = "toml"
	formName  = "name"
)

// readAnswer reads an answer that was followed.
func readAnswer[T any](answer json.RawMessage) (v T, err error) {
	if err = json.Unmarshal(answer, &v); err != nil {
		err = fmt.Errorf("reading the daemon's answer: %w", err)
	}
	return v, err
}

// list returns s, or an empty list where it is nil: JSON shows [] then, not null.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
