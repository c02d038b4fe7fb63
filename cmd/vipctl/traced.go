package main

import (
	"log/slog"
	"os"

	"vipd/cmd/internal/tracing"
	"vipd/cmd/internal/version"
	"vipd/store/tomlfile"
)

// tracingConfig is what is read of the config to find who takes traces, and nothing else.
type tracingConfig struct {
	Tracing struct {
		Endpoint string `toml:"otlp_endpoint"`
	} `toml:"tracing"`
}

// traced runs the verb inside a span, where the config says who takes it. TRACEPARENT is what that goes on from, as pipelines set it;
// without a receiver it is passed on as it is.
func (c *call) traced() error {
	var said tracingConfig
	file := c.flags.String("config")
	if text, err := tomlfile.ReadFile(file); err == nil {
		_ = tomlfile.Decode(file, text, &said) // what is wrong with it, others say
	}
	o := tracing.Options{Endpoint: said.Tracing.Endpoint, Version: version.Version, Log: slog.New(slog.DiscardHandler)}
	o.Node, _ = os.Hostname() // without a name the span is still worth having
	ctx, end := tracing.Command(c.Context, o, c.verbText(), c.getenv("TRACEPARENT"))
	c.Context = ctx
	err := c.verb.run(c)
	end(err)
	return err
}
