package config

import (
	"errors"
	"fmt"
	"io/fs"

	"vipd/balancer"
	"vipd/store/tomlfile"
)

// Load reads a configuration file. An error means that there is nothing to read; problems are what is wrong in it.
func Load(file string) (Config, []balancer.Problem, error) {
	text, err := tomlfile.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Default(), nil, fmt.Errorf("there is no configuration at %s: write one, or name another with --config: %w", file, err)
	case err != nil:
		return Default(), nil, fmt.Errorf("reading the configuration: %w", err)
	}
	d, problems := tomlfile.Parse(file, text)
	if d == nil {
		return Default(), problems, nil
	}
	c, more := Decode(d)
	return c, append(problems, more...), nil
}
