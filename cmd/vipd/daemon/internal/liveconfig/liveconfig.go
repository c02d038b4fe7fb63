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

// Config is the daemon's own part of the configuration, some of which can change at run time. Its
// methods are safe for concurrent use.
type Config struct {
	file    string          // vipd.toml
	mode    config.ModeName // the mode from the command line, which overrides all others
	start   config.Config   // the configuration with which vipd started
	kick    func()
	changed wake.Signal // sent when the configured mode has changed

	settings store.Document // the last settings; only Follow uses them

	mu       sync.Mutex        // guards the fields below
	read     config.Config     // the last valid file
	node     schema.NodeConfig // this node's configuration in the fleet
	standby  bool              // set if an operator wants this host to hold no VIPs
	problems []balancer.Problem
}

// New returns a Config with the configuration start, which was read from file. mode is the mode
// from the command line, or "". kick is called when this node's configuration in the fleet changes.
func New(file string, mode config.ModeName, start config.Config, kick func()) *Config {
	return &Config{file: file, mode: mode, start: start, read: start, kick: kick, changed: wake.New()}
}

// Configure stores this node's configuration in the fleet.
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

// ModeChanged returns a channel that receives a value when the configured mode has changed.
func (c *Config) ModeChanged() <-chan struct{} { return c.changed }

// Current returns the configuration: the last valid file, overridden by this node's configuration
// in the fleet.
func (c *Config) Current() config.Config {
	current, _ := c.Now()
	return current
}

// Now returns the current configuration, and the problems of the file.
func (c *Config) Now() (config.Config, []balancer.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.currentLocked(), c.problems
}

// currentLocked implements Current. A mode from the command line overrides all other modes.
func (c *Config) currentLocked() config.Config {
	current := c.read
	current.Zone = cmp.Or(c.node.Zone, current.Zone)
	if c.node.Mode != "" && c.mode == "" {
		current.Mode = config.ModeName(c.node.Mode)
	}
	return current
}

// Standby reports whether the fleet, or an operator of this host, wants this node to hold no VIPs
// that it can release.
func (c *Config) Standby() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node.Standby || c.standby
}

// SetStandby records whether an operator wants this host to hold no VIPs.
func (c *Config) SetStandby(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.standby = on
	c.kick()
}

// ModeBy describes the origin of Current's mode: the command line, this node's configuration in the
// fleet, or the file.
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

// Follow applies the daemon's own part of a snapshot's settings, and reports whether it did. It
// changes only the settings that can change at run time. If the settings have errors, the old
// settings remain in effect. Calls must not overlap.
func (c *Config) Follow(settings store.Document) (applied bool) {
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

// keepStart resets the settings that can't change at run time to their values from the start of
// vipd, and returns a problem for each such setting that has changed.
func (c *Config) keepStart(next *config.Config) []balancer.Problem {
	var problems []balancer.Problem
	before, current := reflect.ValueOf(c.start), reflect.ValueOf(next).Elem()
	addresses := next.Addresses
	next.Addresses.Allowed, next.Addresses.AllowedEndpoints = c.start.Addresses.Allowed, c.start.Addresses.AllowedEndpoints
	for i := range current.NumField() {
		name := current.Type().Field(i).Tag.Get("toml")
		if c.start.NeedsRestart(name, next) {
			current.Field(i).Set(before.Field(i))
			text := "has changed: restart vipd to apply it"
			if name == "ownership" && c.start.Ownership.Enabled { // vipd owner also reads it
				text = "has changed: restart vipd and vipd owner to apply it: systemctl restart vipd vipd-owner"
			}
			problems = append(problems, balancer.Problem{
				Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: c.file}, Field: name, Kind: balancer.NeedsRestart,
				Text: text,
			})
		}
	}
	next.Addresses.Allowed, next.Addresses.AllowedEndpoints = addresses.Allowed, addresses.AllowedEndpoints
	return problems
}
