package liveconfig

import (
	"cmp"
	"reflect"
	"sync"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/config"
	"vipd/store"
	"vipd/store/etcd/schema"
)

// Config is the daemon's own part of the configuration, of which some can change while it runs. All methods may be called
// by any goroutine.
type Config struct {
	file    string          // vipd.toml
	mode    config.ModeName // the command line's, which wins
	start   config.Config   // as it was when vipd started
	kick    func()
	changed wake.Signal // holds a token: something else is said about the mode

	settings store.Document // what was last read; for Follow alone

	mu       sync.Mutex        // guards the rest
	read     config.Config     // the file as it was last read without errors
	node     schema.NodeConfig // what the fleet says of this node
	problems []balancer.Problem
}

// New returns what start says, which was read from file. Mode is the command line's, and kick is called when the fleet
// has said something of this node.
func New(file string, mode config.ModeName, start config.Config, kick func()) *Config {
	return &Config{file: file, mode: mode, start: start, read: start, kick: kick, changed: wake.New()}
}

// Configure takes what the fleet says of this node.
func (c *Config) Configure(nc schema.NodeConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.currentLocked()
	c.node = nc
	if c.currentLocked().Mode != before.Mode {
		c.changed.Send()
	}
	c.kick()
}

// ModeChanged holds a token when the configuration says something else about the mode.
func (c *Config) ModeChanged() <-chan struct{} { return c.changed }

// Current returns the configuration: the file as it was last read without errors, and over it what the fleet says of
// this node.
func (c *Config) Current() config.Config {
	is, _ := c.Now()
	return is
}

// Now returns the configuration, and what is wrong with the file.
func (c *Config) Now() (config.Config, []balancer.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.currentLocked(), c.problems
}

// currentLocked is Current. The mode of the command line wins.
func (c *Config) currentLocked() config.Config {
	is := c.read
	is.Zone = cmp.Or(c.node.Zone, is.Zone)
	if c.node.Mode != "" && c.mode == "" {
		is.Mode = config.ModeName(c.node.Mode)
	}
	return is
}

// Standby reports whether the fleet says that this node is to hold no VIP that it can give up.
func (c *Config) Standby() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node.Standby
}

// ModeBy says who asks for the mode of Current: the command line, if that has one, else what the fleet says of this node, else the
// file.
func (c *Config) ModeBy() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mode != "":
		return "configured by --mode"
	case c.node.Mode != "":
		return "set in etcd by vipctl node set"
	}
	return "configured in " + c.file
}

// Follow takes the daemon's own part of a snapshot's settings, and reports whether it did. What can change while running does; a
// part with errors keeps what was there. It is called by one goroutine at a time.
func (c *Config) Follow(settings store.Document) (taken bool) {
	if settings == nil || settings == c.settings {
		return false
	}
	c.settings = settings
	next, problems := config.Decode(settings)
	usable := config.Unusable(problems) == nil
	if usable {
		next.Mode, next.Node = cmp.Or(c.mode, next.Mode), cmp.Or(next.Node, c.start.Node)
		problems = append(problems, c.keepStart(&next)...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = problems
	if !usable {
		return false
	}
	if next.Mode != c.read.Mode || next.StrictMode != c.read.StrictMode {
		c.changed.Send()
	}
	c.read = next
	return true
}

// keepStart puts back what can't change while vipd runs to what it was when vipd started, and reports what was changed there.
func (c *Config) keepStart(next *config.Config) []balancer.Problem {
	var problems []balancer.Problem
	was, is := reflect.ValueOf(c.start), reflect.ValueOf(next).Elem()
	addresses := next.Addresses
	next.Addresses.Allowed, next.Addresses.AllowedEndpoints = c.start.Addresses.Allowed, c.start.Addresses.AllowedEndpoints
	for i := range is.NumField() {
		name := is.Type().Field(i).Tag.Get("toml")
		switch name {
		case "mode", "strict_mode", "zone", "node_ports", "defaults", "services", "vips", "health": // followed while running
			continue
		case "node": // by which a fleet knows this one
			if c.start.Store.Kind == config.FileStore {
				continue
			}
		case "store":
			if c.start.Store.Kind == next.Store.Kind {
				continue
			}
		}
		if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			is.Field(i).Set(was.Field(i))
			problems = append(problems, balancer.Problem{
				Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: c.file}, Field: name,
				Text: "has changed, which takes a restart of vipd to come into effect",
			})
		}
	}
	next.Addresses.Allowed, next.Addresses.AllowedEndpoints = addresses.Allowed, addresses.AllowedEndpoints
	return problems
}
