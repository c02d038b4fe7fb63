package cli

import urfave "github.com/urfave/cli/v2"

// These are the kinds of flags that verbs can have.
type (
	// Flag is a flag of any kind.
	Flag = urfave.Flag
	// BoolFlag is a flag without a value.
	BoolFlag = urfave.BoolFlag
	// StringFlag is a flag with a string.
	StringFlag = urfave.StringFlag
	// StringSliceFlag is a repeatable flag with a string.
	StringSliceFlag = urfave.StringSliceFlag
	// IntFlag is a flag with an integer.
	IntFlag = urfave.IntFlag
	// Int64Flag is a flag with a 64-bit integer.
	Int64Flag = urfave.Int64Flag
	// DurationFlag is a flag with a duration.
	DurationFlag = urfave.DurationFlag
)
