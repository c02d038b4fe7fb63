package cli

import urfave "github.com/urfave/cli/v2"

// These are the kinds of flags of verbs.
type (
	// Flag is a flag of any kind.
	Flag = urfave.Flag
	// BoolFlag is a flag without a value.
	BoolFlag = urfave.BoolFlag
	// StringFlag is a flag with a text.
	StringFlag = urfave.StringFlag
	// StringSliceFlag is a flag with a text that may be repeated.
	StringSliceFlag = urfave.StringSliceFlag
	// IntFlag is a flag with a number.
	IntFlag = urfave.IntFlag
	// Int64Flag is a flag with a number of 64 bits.
	Int64Flag = urfave.Int64Flag
	// DurationFlag is a flag with a duration.
	DurationFlag = urfave.DurationFlag
)
