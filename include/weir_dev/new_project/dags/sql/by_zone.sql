SELECT zone, {{ ctx.epoch }} AS epoch, count(*) AS trips, round(sum(distance), 1) AS distance
FROM clean
GROUP BY zone
