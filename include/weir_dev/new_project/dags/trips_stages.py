"""The stages of the dataflow `trips`."""


def clean(ctx, trips):
    """Keep each trip once, and none without a distance."""
    return trips.where("distance > 0").dropDuplicates(["trip_id"])
